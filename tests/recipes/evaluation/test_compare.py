"""Two models on the same questions."""

from __future__ import annotations

import numpy as np
import pytest

from recipes.evaluation.records import Response
from recipes.evaluation.scoring import Score
from recipes.evaluation.statistics import Collector, conclusion, differences, question_stats, won_and_lost


def collector(rights: list[int], n: int, logprob: float | None = -1.0) -> Collector:
    """A pass in which question i has `rights[i]` right answers of n."""
    found = Collector(n, 64)
    for row, right in enumerate(rights):
        scores = [Score(float(k < right), float(k < right), "correct" if k < right else "wrong") for k in range(n)]
        responses = [Response("", 5, "stop", logprob)] * n
        found.add(question_stats(row, responses, scores), responses, scores)
    return found


def test_differences_are_paired_by_question():
    rng = np.random.default_rng(0)
    before = rng.integers(0, 9, 80)
    after = np.minimum(8, before + 1)
    found = differences(collector(list(before), 8), collector(list(after), 8))["accuracy"]
    change = (after - before) / 8
    assert found["value"] == pytest.approx(change.mean())
    unpaired = np.sqrt((before / 8).var() / 80 + (after / 8).var() / 80) * 3.92
    assert found["high"] - found["low"] < unpaired / 4, "the questions' own spread must cancel"
    half = 1.96 * change.std() / np.sqrt(80)
    assert found["low"] == pytest.approx(change.mean() - half, abs=half / 2)


def test_swapping_the_models_turns_every_difference_round():
    one, other = collector([1, 5, 3, 8, 0], 8), collector([2, 5, 7, 6, 1], 8)
    there, back = differences(one, other), differences(other, one)
    for name, value in there.items():
        assert value["value"] == pytest.approx(-back[name]["value"]), name


def test_equal_models_differ_by_nothing_but_not_with_certainty():
    same = collector([0, 8, 4], 8)
    found = differences(same, same)["accuracy"]
    assert found["value"] == 0.0
    assert found["low"] < 0.0 < found["high"]


def test_what_one_model_lacks_has_no_difference():
    found = differences(collector([1, 2], 4), collector([1, 2], 4, logprob=None))
    assert found["token_entropy_nats"] is None
    assert found["mean_tokens"] is not None


def test_greedy_passes_have_no_group_figures():
    assert "score_variance" not in differences(collector([1, 0], 1), collector([1, 1], 1))


def test_won_and_lost_name_rows():
    rows = [10, 20, 30, 40, 50]
    found = won_and_lost(collector([0, 1, 1, 0, 0], 1), collector([1, 1, 0, 0, 1], 1), rows)
    assert (found["won"], found["lost"]) == ([10, 50], [30])
    assert (found["both_right"], found["both_wrong"]) == (1, 1)
    assert found["mcnemar"] == {"won": 2, "lost": 1, "p_value": pytest.approx(1.0)}


def interval(value: float, low: float | None, high: float | None) -> dict:
    return {"value": value, "low": low, "high": high}


@pytest.mark.parametrize(
    ("accuracy", "level", "word"),
    [
        (interval(0.1, 0.02, 0.18), "good", "better"),
        (interval(-0.1, -0.18, -0.02), "bad", "worse"),
        (interval(0.1, -0.02, 0.22), "weak", "No difference is shown"),
        (interval(0.0, None, None), "weak", "No difference is shown"),
    ],
)
def test_the_conclusion_follows_the_interval(accuracy, level, word):
    found = conclusion(accuracy, interval(0.05, 0.0, 0.1), 0.03)
    assert found["level"] == level
    assert word in found["words"]
    assert "McNemar p = 0.03" in found["words"]
