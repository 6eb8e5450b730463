"""Means with 95% confidence intervals. Questions are the independent units: responses to one question are not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

CONFIDENCE = 0.95
RESAMPLES = 9999
# BCa needs n x n numbers for its jackknife, and differs from the plain percentiles only where n is small.
BCA_UP_TO = 2000
BATCH_NUMBERS = 500_000


def mean_with_interval(values: Sequence[float], *, bounds: tuple[float, float] | None = None, seed: int = 0) -> Any:
    """Mean of one value per question with its interval: `{"value", "low", "high", "method"}`.

    Args:
        values: one finite number per question; empty gives None.
        bounds: smallest and largest value that a question can have. They give an interval where every value is the
            same bound, and a bootstrap would claim certainty.
        seed: of the bootstrap's resampling.

    Values that are all 0 or 1 get the Wilson score interval, others a bootstrap over questions (BCa). `low` and `high`
    are None where nothing can be said, such as for a single question whose value has no bounds.
    """
    data = np.asarray(values, dtype=np.float64)
    if data.size == 0:
        return None
    if bounds == (0.0, 1.0) and np.isin(data, (0.0, 1.0)).all():
        return _wilson(int(data.sum()), data.size)
    if np.ptp(data) == 0.0:
        return _constant(float(data[0]), data.size, bounds)
    return _bootstrap(data, seed)


def mcnemar(won: int, lost: int) -> dict[str, Any]:
    """Exact two-sided McNemar test on the questions where two models disagree.

    Args:
        won: questions that only the trained model answers fully; lost: that only the base model does.

    Returns:
        `won`, `lost` and `p_value`: the probability, were both models equally good, of a split at least as uneven.
    """
    from scipy.stats import binomtest

    p_value = float(binomtest(won, won + lost, 0.5).pvalue) if won + lost else 1.0
    return {"won": won, "lost": lost, "p_value": p_value}


def _result(value: float, low: float | None, high: float | None, method: str) -> dict[str, Any]:
    return {"value": float(value), "low": low, "high": high, "method": method}


def _wilson(successes: int, n: int) -> dict[str, Any]:
    from scipy.stats import binomtest

    interval = binomtest(successes, n).proportion_ci(CONFIDENCE, method="wilson")
    return _result(successes / n, float(interval.low), float(interval.high), "Wilson")


def _constant(value: float, n: int, bounds: tuple[float, float] | None) -> dict[str, Any]:
    """n equal values: what differs from them has a share under 1 - 0.025^(1/n) with 95% confidence."""
    if bounds is None:
        return _result(value, None, None, "none: every question has the same value")
    share = 1.0 - ((1.0 - CONFIDENCE) / 2.0) ** (1.0 / n)
    low, high = (value + share * (bound - value) for bound in bounds)
    return _result(value, low, high, "exact bound: every question has the same value")


def _bootstrap(data: np.ndarray, seed: int) -> dict[str, Any]:
    from scipy.stats import bootstrap

    method = "BCa" if data.size <= BCA_UP_TO else "percentile"
    interval = bootstrap(
        (data,),
        np.mean,
        n_resamples=RESAMPLES,
        batch=max(1, BATCH_NUMBERS // data.size),
        confidence_level=CONFIDENCE,
        method=method,
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return _result(data.mean(), float(interval.low), float(interval.high), f"bootstrap over questions ({method})")
