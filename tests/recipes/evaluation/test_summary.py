"""The figures of a whole pass, against numpy on the same values."""

from __future__ import annotations

import numpy as np
import pytest

from recipes.evaluation.records import Response
from recipes.evaluation.scoring import Score
from recipes.evaluation.statistics import Collector, question_stats


def collected(lengths, n=4, max_tokens=64, right=lambda row, sample: (row + sample) % 3 == 0):
    """A collector over questions whose answers have the given lengths, row by row."""
    collector = Collector(n, max_tokens)
    for row, tokens in enumerate(lengths):
        scores = [
            Score(float(right(row, k)), float(right(row, k)), "right" if right(row, k) else "wrong") for k in range(n)
        ]
        responses = [Response("", count, "length" if count == max_tokens else "stop", None) for count in tokens]
        collector.add(question_stats(row, responses, scores), responses, scores)
    return collector


@pytest.fixture
def lengths():
    return np.random.default_rng(0).integers(1, 65, size=(50, 4)).tolist()


def test_quantiles_are_those_of_all_lengths(lengths):
    every = np.sort(np.ravel(lengths))
    found = collected(lengths).summary()["token_quantiles"]
    expected = {
        name: int(np.quantile(every, share, method="inverted_cdf"))
        for name, share in (("p5", 0.05), ("median", 0.5), ("p95", 0.95))
    }
    assert found == expected | {"max": int(every[-1])}


@pytest.mark.parametrize("max_tokens", [1, 7, 64, 1024])
def test_lengths_fall_into_bins_of_whole_tokens(max_tokens):
    lengths = [[1, max_tokens, max(1, max_tokens // 2), max_tokens]] * 5
    histogram = collected(lengths, max_tokens=max_tokens).summary()["histograms"]["tokens"]
    widths = set(np.diff(histogram["edges"]).tolist())
    assert len(widths) == 1
    assert widths.pop() == int(np.ceil(max_tokens / 40))
    counts = np.histogram(np.ravel(lengths), bins=histogram["edges"])[0]
    assert (np.array(histogram["right"]) + np.array(histogram["wrong"])).tolist() == counts.tolist()
    assert sum(histogram["right"]) + sum(histogram["wrong"]) == 20


def test_two_models_under_one_limit_have_the_same_bins():
    short, long = (collected([[size] * 4] * 3).summary()["histograms"]["tokens"]["edges"] for size in (10, 60))
    assert long[: len(short)] == short


def test_histograms_hold_every_question(lengths):
    summary = collected(lengths).summary()
    for name in ("mean_score", "group_entropy_bits"):
        assert sum(summary["histograms"][name]["counts"]) == 50
    assert sum(count for _, _, count in summary["variance_by_accuracy"]) == 50
    assert summary["histograms"]["token_entropy_nats"] is None


def test_scores_outside_of_0_and_1_are_in_the_histogram():
    collector = Collector(2, 8)
    for row, value in enumerate((-1.0, 0.5, 2.0)):
        responses, scores = [Response("", 1, "stop", None)] * 2, [Score(value, 0.0, "r")] * 2
        collector.add(question_stats(row, responses, scores), responses, scores)
    histogram = collector.summary()["histograms"]["mean_score"]
    assert (histogram["edges"][0], histogram["edges"][-1]) == (-1.0, 2.0)
    assert sum(histogram["counts"]) == 3


def test_lengths_that_are_not_known_for_all_are_not_reported():
    collector = Collector(2, 8)
    responses = [Response("", 3, "stop", None), Response("", None, "stop", None)]
    scores = [Score(1.0, 1.0, "r")] * 2
    collector.add(question_stats(0, responses, scores), responses, scores)
    summary = collector.summary()
    assert summary["mean_tokens"] is None
    assert summary["token_quantiles"] is None
