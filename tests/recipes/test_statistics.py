"""Intervals and tests against closed forms and their own promise: coverage."""

import itertools
import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import example, given, settings
from hypothesis import strategies as st

from recipes import statistics
from recipes.statistics import (
    difference_of_shares,
    holm,
    mcnemar,
    mean_over_seeds,
    mean_with_interval,
    paired_p_value,
    pass_at_k,
)


def wilson(successes: int, n: int) -> tuple[float, float]:
    """Wilson 1927 by its textbook formula."""
    z, p = 1.959963984540054, successes / n
    centre, spread = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return (centre - spread) / (1 + z * z / n), (centre + spread) / (1 + z * z / n)


@pytest.mark.parametrize(("successes", "n"), [(0, 50), (3, 50), (25, 50), (50, 50), (1, 1), (659, 1319)])
def test_shares_of_right_answers_get_the_wilson_interval(successes, n):
    interval = mean_with_interval([1.0] * successes + [0.0] * (n - successes), bounds=(0.0, 1.0))
    assert interval.value == pytest.approx(successes / n)
    assert (interval.low, interval.high) == pytest.approx(wilson(successes, n), abs=1e-12)


def test_the_interval_covers_the_truth_as_often_as_it_says(monkeypatch):
    monkeypatch.setattr(statistics, "RESAMPLES", 499)
    rng = np.random.default_rng(11)
    truth, hits, trials = 0.2, 0, 300
    for trial in range(trials):
        skill = rng.beta(0.5, 2.0, 60)
        interval = mean_with_interval(rng.binomial(8, skill) / 8, bounds=(0.0, 1.0), seed=trial)
        hits += interval.low <= truth <= interval.high
    assert 0.90 <= hits / trials <= 0.985


# Gains of one answer in ten on each question: equal as fractions, different in the last bits as floats.
EQUAL_GAINS = [(right + 1) / 10 - right / 10 for right in range(9)] * 3


@pytest.mark.parametrize(
    "values",
    [EQUAL_GAINS, [-gain for gain in EQUAL_GAINS], [0.1 + 1e-12 * k for k in range(5)], [0.0] * 100],
    ids=["gains", "losses", "noise", "zeros"],
)
def test_equal_values_are_equal_whatever_their_last_bits_and_do_not_claim_certainty(values):
    """The share that n equal questions could have missed solves (1 - share)^n = 0.025."""
    interval = mean_with_interval(values, bounds=(-1.0, 1.0))
    exact = mean_with_interval([round(value, 9) for value in values], bounds=(-1.0, 1.0))
    share = 1 - 0.025 ** (1 / len(values))
    assert (interval.low, interval.high) == pytest.approx((exact.low, exact.high), abs=1e-9)
    assert interval.high - interval.low == pytest.approx(2 * share)
    assert "every question has the same value" in interval.method
    assert mean_with_interval(values).low is None
    with pytest.raises(ValueError, match="no values"):
        mean_with_interval([])


@given(st.lists(st.sampled_from([k / 10 - j / 10 for k in range(11) for j in range(11)]), min_size=1, max_size=12))
@settings(max_examples=60, deadline=None)
def test_an_interval_is_finite_holds_its_mean_and_stays_in_bounds(values):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(statistics, "RESAMPLES", 199)
        interval = mean_with_interval(values, bounds=(-1.0, 1.0))
    assert -1.0 <= interval.low <= interval.value + 1e-9
    assert interval.value - 1e-9 <= interval.high <= 1.0
    assert interval.low < interval.high, "no sample makes certain"


def exact_mcnemar(won: int, lost: int) -> float:
    """Twice the binomial tail at one half, in integers."""
    n, few = won + lost, min(won, lost)
    return min(1.0, 2 * sum(math.comb(n, k) for k in range(few + 1)) / 2**n)


@example(5, 15, 0)
@example(1, 8, 1)
@example(9, 1, 0)
@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 100))
@settings(max_examples=40, deadline=None)
def test_mcnemars_test_is_exact_and_the_interval_of_a_difference_agrees_with_it(won, lost, same):
    assert mcnemar(won, lost) == pytest.approx(exact_mcnemar(won, lost), rel=1e-9)
    if won + lost + same == 0:
        return
    interval = difference_of_shares(won, lost, won + lost + same)
    assert interval.value == pytest.approx((won - lost) / (won + lost + same))
    assert interval.low <= interval.value <= interval.high
    assert interval.excludes_zero == (mcnemar(won, lost) < 0.05)


def test_the_paired_test_is_every_flip_of_signs():
    data = np.array([0.3, -0.1, 0.2, 0.4, 0.0, 0.25, 0.1])
    flips = np.array(list(itertools.product([1, -1], repeat=data.size)))
    means = np.abs((flips * data).mean(axis=1))
    assert paired_p_value(data) == pytest.approx((means >= abs(data.mean()) - 1e-12).mean())
    # Rounding noise alone, equal values, one value.
    assert paired_p_value([0.1 * 3 - 0.3, 0.0, 1e-17]) == 1.0
    assert paired_p_value(EQUAL_GAINS[:9]) == pytest.approx(2 / 2**9)
    assert paired_p_value([0.5]) == 1.0
    assert paired_p_value(EQUAL_GAINS) == pytest.approx(2 / 2**27)


def test_a_large_set_gets_the_p_value_of_a_t_test():
    data = np.random.default_rng(0).normal(0.02, 0.3, statistics.SIGN_FLIP_UP_TO)
    flips = paired_p_value(data)
    assert flips == pytest.approx(scipy.stats.ttest_1samp(data, 0.0).pvalue, abs=0.02)
    more = np.append(data, 0.0)
    assert paired_p_value(more) == pytest.approx(scipy.stats.ttest_1samp(more, 0.0).pvalue)


def test_holm_by_its_definition_and_students_t_over_seeds():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert (holm([0.5, 0.9]), holm([])) == ([1.0, 1.0], [])
    interval = mean_over_seeds([0.5, 0.6, 0.7])
    half = scipy.stats.t.ppf(0.975, 2) * 0.1 / math.sqrt(3)
    assert (interval.value, interval.low, interval.high) == pytest.approx((0.6, 0.6 - half, 0.6 + half))
    assert mean_over_seeds([0.5]).low is None
    assert mean_over_seeds([0.3, 0.1 + 0.2]).low is None


@pytest.mark.parametrize("n", [1, 2, 5, 7])
def test_pass_at_k_is_the_share_of_subsets_with_a_right_answer(n):
    for correct, k in itertools.product(range(n + 1), range(1, n + 1)):
        answers = [True] * correct + [False] * (n - correct)
        subsets = list(itertools.combinations(answers, k))
        assert pass_at_k(n, correct, k) == pytest.approx(sum(map(any, subsets)) / len(subsets), abs=1e-15)


def test_pass_at_k_is_exact_where_floats_overflow_and_refuses_what_cannot_be():
    assert pass_at_k(5000, 1, 2500) == 0.5
    for n, correct, k in ((4, 5, 1), (4, -1, 1), (4, 2, 0), (4, 2, 5)):
        with pytest.raises(ValueError):
            pass_at_k(n, correct, k)
