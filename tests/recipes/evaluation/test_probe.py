"""Verdicts and advice at and around every threshold."""

from __future__ import annotations

import pytest

from recipes.evaluation.metrics import Groups, PassSummary, Share
from recipes.evaluation.probe import judge as judge_
from recipes.evaluation.probe import probe
from recipes.evaluation.sampling import Sampling
from recipes.statistics import Interval


@pytest.mark.parametrize(
    ("judge", "value", "level", "word"),
    [
        ("accuracy", 0.0499, "bad", "fine-tune first"),
        ("accuracy", 0.05, "weak", "hard"),
        ("accuracy", 0.0999, "weak", "hard"),
        ("accuracy", 0.10, "good", "good"),
        ("accuracy", 0.80, "good", "good"),
        ("accuracy", 0.81, "weak", "easy"),
        ("accuracy", 0.95, "weak", "easy"),
        ("accuracy", 0.951, "bad", "use a harder set"),
        ("score_variance", 0.0099, "bad", "no signal"),
        ("score_variance", 0.01, "weak", "weak"),
        ("score_variance", 0.05, "weak", "weak"),
        ("score_variance", 0.051, "good", "good"),
        ("group_entropy_bits", 0.19, "weak", "low"),
        ("group_entropy_bits", 0.2, "good", "good"),
        ("group_entropy_bits", 0.8, "good", "good"),
        ("group_entropy_bits", 0.81, "weak", "high"),
    ],
)
def test_verdicts_around_their_thresholds(judge, value, level, word):
    verdict = judge_(judge, value)
    assert verdict.level == level
    assert word in verdict.text


def summary(accuracy=0.4, variance=0.15, entropy=0.6, dead=0.2, truncated=0.0, reasons=None) -> PassSummary:
    values = {"accuracy": accuracy, "score_variance": variance, "group_entropy_bits": entropy, "truncated": truncated}
    figures = {name: Interval(value, None, None, "") for name, value in values.items()}
    groups = Groups(*[Share(0, 0.0)] * 3, Share(0, dead))
    return PassSummary(Sampling(16, 1.0), 10, 100, figures, None, groups, reasons or {"wrong_value": 100}, {}, [])


@pytest.mark.parametrize(
    ("changes", "level", "words"),
    [
        ({}, "good", ["Train:", "80.0% of the groups have some variance", "of 32 prompts a step about 26"]),
        ({"dead": 0.6}, "weak", ["--filter_out", "60.0%", "about 13"]),
        ({"accuracy": 0.02}, "bad", ["Fine-tune first", "easier", "2.0%"]),
        ({"accuracy": 0.02, "reasons": {"no_answer": 60, "wrong_value": 40}}, "bad", ["format", "60.0%"]),
        ({"accuracy": 0.02, "reasons": {"gold_unparsable": 60, "wrong_value": 40}}, "bad", ["easier"]),
        ({"accuracy": 0.97}, "bad", ["harder set", "97.0%"]),
        ({"variance": 0.004}, "bad", ["always or never"]),
        ({"truncated": 0.3, "accuracy": 0.02}, "weak", ["response tokens", "30.0%"]),
    ],
)
def test_one_piece_of_advice(changes, level, words):
    advice = probe(summary(**changes), 32).recommendation
    assert advice.level == level
    for word in words:
        assert word in advice.text


def test_the_batch_that_is_left():
    judged = probe(summary(dead=0.25), 64)
    assert (judged.prompts, judged.kept, judged.zero_variance_share) == (64, 48.0, 0.25)
    unknown = probe(summary(), None)
    assert unknown.kept is None
    assert "prompts a step" not in unknown.recommendation.text


def test_codes_for_unread_answers_are_codes_of_the_rewards():
    from recipes.data.rewards import load_reward
    from recipes.evaluation.probe import UNREAD

    known = {code for task in ("countdown", "gsm8k") for code in load_reward(f"reward_functions/{task}.py").REASONS}
    assert set(UNREAD) <= known
    assert not {"correct", "wrong", "wrong_value", "gold_unparsable"} & set(UNREAD)
