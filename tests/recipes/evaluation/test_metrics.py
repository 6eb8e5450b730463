"""Metrics of one group against brute force, closed forms and other libraries."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from recipes.evaluation.records import Response
from recipes.evaluation.scoring import Score
from recipes.evaluation.statistics import (
    binary_entropy_bits,
    ks_for,
    pass_at_k,
    population_variance,
    question_stats,
    token_entropy_nats,
)


@pytest.mark.parametrize("n", [1, 2, 5, 7])
def test_pass_at_k_is_the_share_of_subsets_with_a_right_answer(n):
    for correct, k in itertools.product(range(n + 1), range(1, n + 1)):
        answers = [True] * correct + [False] * (n - correct)
        subsets = list(itertools.combinations(answers, k))
        assert pass_at_k(n, correct, k) == pytest.approx(sum(map(any, subsets)) / len(subsets), abs=1e-15)


@pytest.mark.parametrize(("n", "k", "p"), [(16, 1, 0.3), (16, 4, 0.05), (16, 16, 0.2), (10, 3, 0.77)])
def test_pass_at_k_is_unbiased(n, k, p):
    expected = sum(scipy.stats.binom.pmf(c, n, p) * pass_at_k(n, c, k) for c in range(n + 1))
    assert expected == pytest.approx(1 - (1 - p) ** k, abs=1e-12)
    plug_in = sum(scipy.stats.binom.pmf(c, n, p) * (1 - (1 - c / n) ** k) for c in range(n + 1))
    if k > 1:
        assert abs(plug_in - (1 - (1 - p) ** k)) > 1e-3, "the biased formula would not have been noticed"


def test_pass_at_k_stays_exact_where_floats_overflow():
    assert pass_at_k(5000, 1, 2500) == 0.5


@pytest.mark.parametrize(("n", "correct", "k"), [(4, 5, 1), (4, -1, 1), (4, 2, 0), (4, 2, 5)])
def test_pass_at_k_refuses_what_cannot_be(n, correct, k):
    with pytest.raises(ValueError, match="need 1 <= k <= n"):
        pass_at_k(n, correct, k)


def test_the_ks_are_powers_of_two_and_n():
    assert ks_for(1) == [1]
    assert ks_for(6) == [1, 2, 4, 6]
    assert ks_for(16) == [1, 2, 4, 8, 16]


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=20))
@settings(max_examples=60, deadline=None)
def test_variance_is_that_of_numpy_with_ddof_0(values):
    assert population_variance(values) == pytest.approx(np.var(values, ddof=0), abs=1e-12)


@given(st.floats(0, 1))
@settings(max_examples=60, deadline=None)
def test_group_entropy_is_that_of_scipy_in_bits(p):
    assert binary_entropy_bits(p) == pytest.approx(scipy.stats.entropy([p, 1 - p], base=2), abs=1e-12)


@pytest.mark.parametrize(
    ("p", "bits"), [(0.5, 1.0), (0.0, 0.0), (1.0, 0.0), (-0.2, 0.0), (1.3, 0.0), (0.25, 0.8112781)]
)
def test_group_entropy_at_known_points(p, bits):
    assert binary_entropy_bits(p) == pytest.approx(bits, abs=1e-7)


def test_token_entropy_estimates_the_entropy_of_the_distribution_that_was_sampled():
    probabilities = np.array([0.55, 0.25, 0.15, 0.05])
    drawn = np.random.default_rng(0).choice(4, size=(400, 50), p=probabilities)
    responses = [Response("", 50, "stop", float(np.log(probabilities[tokens]).sum())) for tokens in drawn]
    exact = scipy.stats.entropy(probabilities)
    error = np.log(probabilities[drawn]).std() / math.sqrt(drawn.size)
    assert token_entropy_nats(responses) == pytest.approx(exact, abs=4 * error)


def test_token_entropy_weighs_tokens_and_not_responses():
    short, long = Response("", 1, "stop", -4.0), Response("", 99, "stop", -99.0)
    assert token_entropy_nats([short, long]) == pytest.approx(103 / 100)


@pytest.mark.parametrize(
    "unknown", [Response("", 3, "stop", None), Response("", None, "stop", -1.0), Response("", 0, "stop", 0.0)]
)
def test_token_entropy_is_unknown_rather_than_wrong(unknown):
    assert token_entropy_nats([Response("", 3, "stop", -1.0), unknown]) is None


def test_a_group_is_summed_up():
    scores = [
        Score(1.0, 1.0, "correct"),
        Score(0.1, 0.0, "wrong_value"),
        Score(0.0, 0.0, "no_answer"),
        Score(1.0, 1.0, "correct"),
    ]
    responses = [
        Response("", tokens, finish, -1.0) for tokens, finish in ((4, "stop"), (6, "stop"), (8, "length"), (2, "stop"))
    ]
    stats = question_stats(7, responses, scores)
    assert (stats.row, stats.n, stats.full_marks, stats.outcome) == (7, 4, 2, "mixed")
    assert stats.mean_score == pytest.approx(0.525)
    assert stats.score_variance == pytest.approx(np.var([1, 0.1, 0, 1]))
    assert stats.accuracy == 0.5
    assert stats.group_entropy_bits == 1.0
    assert stats.score_entropy_bits == pytest.approx(scipy.stats.entropy([0.525, 0.475], base=2))
    assert stats.pass_at == {1: 0.5, 2: pytest.approx(5 / 6), 4: 1.0}
    assert stats.truncated == 0.25
    assert stats.mean_tokens == 5.0
    assert stats.token_entropy_nats == pytest.approx(4 / 20)
    assert stats.reasons == {"correct": 2, "wrong_value": 1, "no_answer": 1}


@pytest.mark.parametrize(("full", "outcome"), [(0, "all wrong"), (3, "all right"), (1, "mixed")])
def test_outcomes(full, outcome):
    scores = [Score(float(number < full), float(number < full), "") for number in range(3)]
    assert question_stats(0, [Response("", 1, "stop", None)] * 3, scores).outcome == outcome


def test_partial_credit_throughout_is_no_disagreement():
    stats = question_stats(0, [Response("", 1, "stop", None)] * 4, [Score(0.2, 0.0, "wrong")] * 4)
    assert (stats.group_entropy_bits, stats.score_variance) == (0.0, 0.0)
    assert stats.score_entropy_bits > 0.7


def test_partial_credit_is_no_full_mark():
    assert not Score(0.999, 1.0, "").full
    assert Score(0.1 + 0.2 + 0.7, 1.0, "").full, "rounding of a sum must not cost the mark"
