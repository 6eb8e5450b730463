"""Figures of one group against closed forms and other libraries, and of a whole pass against numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from recipes.data.rewards import is_right
from recipes.evaluation.metrics import Collector, binary_entropy_bits, question_stats, token_entropy_nats
from recipes.evaluation.sampling import Response, Sampling
from recipes.evaluation.scoring import Score, as_score


def score(right, value=None, reason=""):
    return Score(float(right) if value is None else value, float(right), bool(right), reason)


@pytest.mark.parametrize(
    ("result", "right"),
    [
        (1.0, True),
        (0.1 + 0.2 + 0.7, True),
        (0.999, False),
        ({"score": 1.0}, True),
        ({"score": 0.9, "accuracy": 1.0, "format": 0.0}, True),
        ({"score": 1.0, "accuracy": 0.0}, False),
        ({"score": 0.9, "acc": 1.0}, True),
        ({"score": 2.0, "acc": None}, True),
        ({"score": 0.5, "acc": True}, True),
    ],
    ids=str,
)
def test_a_right_answer_has_one_definition(result, right):
    assert is_right(result) is right
    assert as_score(result, "reward.py").right is right


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
        score(1, reason="correct"),
        score(0, 0.1, "wrong_value"),
        score(0, reason="no_answer"),
        score(1, 0.9, "correct"),
    ]
    responses = [
        Response("", tokens, finish, -1.0) for tokens, finish in ((4, "stop"), (6, "stop"), (8, "length"), (2, "stop"))
    ]
    stats = question_stats(7, responses, scores)
    assert (stats.row, stats.n, stats.right, stats.outcome) == (7, 4, 2, "mixed")
    assert stats.mean_score == pytest.approx(0.5)
    assert stats.score_variance == pytest.approx(np.var([1, 0.1, 0, 0.9]))
    assert stats.accuracy == 0.5
    assert stats.group_entropy_bits == 1.0
    assert stats.score_entropy_bits == pytest.approx(scipy.stats.entropy([0.5, 0.5], base=2))
    assert stats.pass_at == {1: 0.5, 2: pytest.approx(5 / 6), 4: 1.0}
    assert stats.truncated == 0.25
    assert stats.mean_tokens == 5.0
    assert stats.token_entropy_nats == pytest.approx(4 / 20)
    assert stats.reasons == {"correct": 2, "wrong_value": 1, "no_answer": 1}


@pytest.mark.parametrize(("full", "outcome"), [(0, "all wrong"), (3, "all right"), (1, "mixed")])
def test_outcomes(full, outcome):
    scores = [score(number < full) for number in range(3)]
    assert question_stats(0, [Response("", 1, "stop", None)] * 3, scores).outcome == outcome


def test_partial_credit_throughout_is_no_disagreement():
    stats = question_stats(0, [Response("", 1, "stop", None)] * 4, [score(0, 0.2)] * 4)
    assert (stats.group_entropy_bits, stats.score_variance) == (0.0, 0.0)
    assert stats.score_entropy_bits > 0.7


def collected(lengths, n=4, max_tokens=64, right=lambda row, sample: (row + sample) % 3 == 0):
    """A collector over questions whose answers have the given lengths, row by row."""
    collector = Collector(Sampling(n, 1.0, 1.0, max_tokens))
    for row, tokens in enumerate(lengths):
        scores = [score(right(row, k)) for k in range(n)]
        responses = [Response("", count, "length" if count == max_tokens else "stop", None) for count in tokens]
        collector.add(question_stats(row, responses, scores), responses, scores)
    return collector


@pytest.fixture
def lengths():
    return np.random.default_rng(0).integers(1, 65, size=(50, 4)).tolist()


def test_quantiles_are_those_of_all_lengths(lengths):
    every = np.sort(np.ravel(lengths))
    found = collected(lengths).summary().token_quantiles
    expected = {
        name: int(np.quantile(every, share, method="inverted_cdf"))
        for name, share in (("p5", 0.05), ("median", 0.5), ("p95", 0.95))
    }
    assert found == expected | {"max": int(every[-1])}


@pytest.mark.parametrize("max_tokens", [1, 7, 64, 1024])
def test_lengths_fall_into_bins_of_whole_tokens(max_tokens):
    lengths = [[1, max_tokens, max(1, max_tokens // 2), max_tokens]] * 5
    histogram = collected(lengths, max_tokens=max_tokens).summary().histograms["tokens"]
    widths = set(np.diff(histogram["edges"]).tolist())
    assert len(widths) == 1
    assert widths.pop() == int(np.ceil(max_tokens / 40))
    counts = np.histogram(np.ravel(lengths), bins=histogram["edges"])[0]
    assert (np.array(histogram["right"]) + np.array(histogram["wrong"])).tolist() == counts.tolist()
    assert sum(histogram["right"]) + sum(histogram["wrong"]) == 20


def test_two_models_under_one_limit_have_the_same_bins():
    short, long = (collected([[size] * 4] * 3).summary().histograms["tokens"]["edges"] for size in (10, 60))
    assert long[: len(short)] == short


def test_histograms_hold_every_question(lengths):
    summary = collected(lengths).summary()
    for name in ("mean_score", "group_entropy_bits"):
        assert sum(summary.histograms[name]["counts"]) == 50
    assert sum(count for _, _, count in summary.variance_by_accuracy) == 50
    assert summary.histograms["token_entropy_nats"] is None


def test_scores_outside_of_0_and_1_are_in_the_histogram():
    collector = Collector(Sampling(2, 1.0, 1.0, 8))
    for row, value in enumerate((-1.0, 0.5, 2.0)):
        responses, scores = [Response("", 1, "stop", None)] * 2, [score(0, value)] * 2
        collector.add(question_stats(row, responses, scores), responses, scores)
    histogram = collector.summary().histograms["mean_score"]
    assert (histogram["edges"][0], histogram["edges"][-1]) == (-1.0, 2.0)
    assert sum(histogram["counts"]) == 3


def test_lengths_that_are_not_known_for_all_are_not_reported():
    collector = Collector(Sampling(2, 1.0, 1.0, 8))
    responses = [Response("", 3, "stop", None), Response("", None, "stop", None)]
    scores = [score(1)] * 2
    collector.add(question_stats(0, responses, scores), responses, scores)
    summary = collector.summary()
    assert summary.figures["mean_tokens"] is None
    assert summary.token_quantiles is None


@given(rights=st.lists(st.integers(0, 8), min_size=2, max_size=30))
@settings(max_examples=25, deadline=None)
def test_shares_of_groups_always_add_up(rights):
    groups = collected([[3] * 8] * len(rights), n=8, right=lambda row, sample: sample < rights[row])._groups()
    assert groups.all_right.count + groups.mixed.count + groups.all_wrong.count == len(rights)
    assert groups.zero_variance.count == groups.all_right.count + groups.all_wrong.count
