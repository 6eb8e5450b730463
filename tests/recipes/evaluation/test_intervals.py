"""Intervals against closed forms, an independent bootstrap, and their own promise: coverage."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.stats import norm

from recipes.evaluation import statistics
from recipes.evaluation.statistics import mcnemar, mean_with_interval


def wilson(successes: int, n: int) -> tuple[float, float]:
    """Wilson 1927 by its textbook formula."""
    z, p = 1.959963984540054, successes / n
    centre, spread = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return (centre - spread) / (1 + z * z / n), (centre + spread) / (1 + z * z / n)


@pytest.mark.parametrize(("successes", "n"), [(0, 50), (3, 50), (25, 50), (50, 50), (1, 1), (659, 1319)])
def test_shares_of_right_and_wrong_get_the_wilson_interval(successes, n):
    found = mean_with_interval([1.0] * successes + [0.0] * (n - successes), bounds=(0.0, 1.0))
    low, high = wilson(successes, n)
    assert found["value"] == pytest.approx(successes / n)
    assert (found["low"], found["high"]) == (pytest.approx(low, abs=1e-12), pytest.approx(high, abs=1e-12))


def bca_by_hand(data: np.ndarray, resamples: np.ndarray) -> tuple[float, float]:
    """Efron 1987 for the mean, whose acceleration is the skewness over 6 sqrt(n)."""
    means = np.sort(resamples)
    centred = data - data.mean()
    acceleration = (centred**3).sum() / (6 * (centred**2).sum() ** 1.5)
    bias = norm.ppf((means < data.mean()).mean() + 0.5 * (means == data.mean()).mean())
    shares = []
    for z in norm.ppf([0.025, 0.975]):
        shares.append(norm.cdf(bias + (bias + z) / (1 - acceleration * (bias + z))))
    low, high = np.quantile(means, shares)
    return float(low), float(high)


def test_the_bootstrap_agrees_with_all_resamples_that_there_are():
    data = np.array([0.0, 0.125, 0.25, 0.25, 0.5, 1.0])
    every = np.array([np.mean(pick) for pick in itertools.product(data, repeat=data.size)])
    found = mean_with_interval(data, bounds=(0.0, 1.0))
    low, high = bca_by_hand(data, every)
    assert found["method"] == "bootstrap over questions (BCa)"
    assert found["low"] == pytest.approx(low, abs=0.02)
    assert found["high"] == pytest.approx(high, abs=0.02)


def test_a_large_set_gets_percentiles_that_match_the_normal_interval():
    data = np.random.default_rng(3).beta(0.5, 0.8, statistics.BCA_UP_TO + 1)
    found = mean_with_interval(data, bounds=(0.0, 1.0))
    half = 1.96 * data.std(ddof=1) / math.sqrt(data.size)
    assert found["method"] == "bootstrap over questions (percentile)"
    assert found["low"] == pytest.approx(data.mean() - half, abs=0.03 * half)
    assert found["high"] == pytest.approx(data.mean() + half, abs=0.03 * half)


def test_the_interval_covers_the_truth_as_often_as_it_says(monkeypatch):
    monkeypatch.setattr(statistics, "RESAMPLES", 499)
    rng = np.random.default_rng(11)
    truth, hits, trials = 0.2, 0, 300
    for trial in range(trials):
        skill = rng.beta(0.5, 2.0, 60)
        values = rng.binomial(8, skill) / 8
        found = mean_with_interval(values, bounds=(0.0, 1.0), seed=trial)
        hits += found["low"] <= truth <= found["high"]
    assert 0.90 <= hits / trials <= 0.985


def test_the_seed_decides_the_interval():
    data = np.random.default_rng(0).random(30)
    assert mean_with_interval(data, seed=1) == mean_with_interval(data, seed=1)
    assert mean_with_interval(data, seed=1) != mean_with_interval(data, seed=2)


def test_one_value_throughout_does_not_claim_certainty():
    found = mean_with_interval([0.0] * 100, bounds=(-1.0, 1.0))
    # Solve (1 - share)^100 = 0.025 for the share that 100 questions could have missed.
    share = 1 - 0.025 ** (1 / 100)
    assert found["value"] == 0.0
    assert (found["low"], found["high"]) == (pytest.approx(-share), pytest.approx(share))
    half = mean_with_interval([0.5] * 20, bounds=(0.0, 1.0))
    assert 0.4 < half["low"] < 0.5 < half["high"] < 0.6


def test_what_has_no_bounds_has_no_interval_where_it_never_varies():
    found = mean_with_interval([3.0, 3.0, 3.0])
    assert (found["value"], found["low"], found["high"]) == (3.0, None, None)


def test_nothing_has_no_mean():
    assert mean_with_interval([]) is None


def exact_mcnemar(won: int, lost: int) -> float:
    """Twice the binomial tail at one half, in integers."""
    n, few = won + lost, min(won, lost)
    return min(1.0, 2 * sum(math.comb(n, k) for k in range(few + 1)) / 2**n)


@pytest.mark.parametrize(("won", "lost"), [(0, 0), (1, 0), (5, 5), (8, 2), (2, 8), (20, 3), (0, 12), (7, 6)])
def test_mcnemar_is_the_exact_binomial_test(won, lost):
    found = mcnemar(won, lost)
    assert found["p_value"] == pytest.approx(exact_mcnemar(won, lost) if won + lost else 1.0, rel=1e-9)
    assert (found["won"], found["lost"]) == (won, lost)
