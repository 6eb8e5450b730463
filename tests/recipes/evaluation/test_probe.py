"""Verdicts and advice at and around every threshold."""

import pytest

from recipes.evaluation.probe import probe
from recipes.responses.measures import Measures, Summary
from recipes.responses.scored import ScoredResponse
from recipes.statistics import Interval


@pytest.mark.parametrize(
    ("figures", "zero_variance", "reasons", "level", "texts"),
    [
        ({}, 0.2, {}, "good", ["Train:", "80.0% of the groups have some variance", "of 32 prompts a step about 26"]),
        ({}, 0.6, {}, "weak", ["--filter_out", "60.0%", "about 13"]),
        ({"accuracy": 0.02}, 0.2, {}, "bad", ["fine-tune first"]),
        ({"accuracy": 0.97}, 0.2, {}, "bad", ["use a harder set"]),
        ({"score_variance": 0.005}, 0.2, {}, "bad", ["no signal"]),
        ({"accuracy": 0.02}, 0.2, {"no_answer": 60}, "bad", ["format", "60.0%"]),
    ],
)
def test_one_piece_of_advice(figures, zero_variance, reasons, level, texts):
    values = {"accuracy": 0.4, "score_variance": 0.15, "group_entropy_bits": 0.6, "truncated": 0.0} | figures
    intervals = {name: Interval(value, None, None, "") for name, value in values.items()}
    groups = {"without variance": round(10 * zero_variance)}
    summary = Summary(None, "accuracy", 10, 10, 100, intervals, groups, reasons, 0, "")
    judged = probe(summary, 32)
    assert judged.recommendation.level == level
    assert all(text in judged.recommendation.text for text in texts)
    assert (judged.prompts, judged.kept) == (32, pytest.approx(32 * (1 - zero_variance)))


@pytest.mark.parametrize("right", [-3.0, 0.1, 1.0, 10.0])
def test_the_scale_of_the_scores_decides_nothing(right):
    """GRPO divides by the group's deviation, and 0.1 for right had no signal."""
    judged = []
    for scale in (1.0, right):
        measures = Measures()
        for count in (0, 2, 3, 5):
            rights = [float(number < count) for number in range(8)]
            measures.add([ScoredResponse(scale * right, right, truncated=False) for right in rights])
        judged.append(probe(measures.summary, 32))
    assert judged[1] == judged[0]
    assert judged[0].recommendation.level == "good"
