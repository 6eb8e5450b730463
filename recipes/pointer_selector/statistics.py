"""Paired tests between selectors on the same queries, and intervals over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from recipes.statistics import mcnemar


@dataclass(frozen=True)
class Paired:
    """`a` against `b` on the same queries.

    Attributes:
        difference: mean of a - b.
        low, high: 95% interval of it by a bootstrap over clusters.
        a_only, b_only: queries that only one of the two gets right.
        p_value: exact McNemar test, two-sided; it takes queries for independent.
    """

    difference: float
    low: float
    high: float
    a_only: int
    b_only: int
    p_value: float


def paired(a: np.ndarray, b: np.ndarray, clusters: np.ndarray, *, draws: int = 5000, seed: int = 0) -> Paired:
    """Compare right answers (0 or 1) of two selectors.

    Args:
        a, b: [Q] each, in the same order of queries.
        clusters: [Q], what is drawn together in the bootstrap: queries about one image are not independent.
    """
    a_only, b_only = int(((a > 0) & (b <= 0)).sum()), int(((b > 0) & (a <= 0)).sum())
    low, high = cluster_bootstrap(a - b, clusters, draws=draws, seed=seed)
    return Paired(float((a - b).mean()), low, high, a_only, b_only, mcnemar(a_only, b_only).p_value)


def cluster_bootstrap(values: np.ndarray, clusters: np.ndarray, *, draws: int, seed: int) -> tuple[float, float]:
    """95% percentile interval of the mean, drawing whole clusters with replacement."""
    _, number = np.unique(clusters, return_inverse=True)
    sums, sizes = np.bincount(number, weights=values), np.bincount(number)
    chosen = np.random.default_rng(seed).multinomial(len(sums), np.full(len(sums), 1 / len(sums)), size=draws)
    low, high = np.quantile((chosen @ sums) / (chosen @ sizes), [0.025, 0.975])
    return float(low), float(high)


def mean_interval(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and half-width of its 95% interval by Student's t over seeds; no width for a single value."""
    from scipy.stats import t

    array = np.asarray(values, float)
    if len(array) < 2:
        return float(array.mean()), None
    half = t.ppf(0.975, len(array) - 1) * array.std(ddof=1) / np.sqrt(len(array))
    return float(array.mean()), float(half)
