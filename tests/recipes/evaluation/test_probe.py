"""Verdicts and advice at and around every threshold."""

from __future__ import annotations

import pytest

from recipes.evaluation.probe import judge_accuracy, judge_entropy, judge_variance, probe


@pytest.mark.parametrize(
    ("value", "level", "word"),
    [
        (0.0, "bad", "fine-tune first"),
        (0.0499, "bad", "fine-tune first"),
        (0.05, "weak", "hard"),
        (0.0999, "weak", "hard"),
        (0.10, "good", "good"),
        (0.80, "good", "good"),
        (0.81, "weak", "easy"),
        (0.95, "weak", "easy"),
        (0.951, "bad", "use a harder set"),
        (1.0, "bad", "use a harder set"),
    ],
)
def test_accuracy(value, level, word):
    verdict = judge_accuracy(value)
    assert verdict.level == level
    assert word in verdict.words


@pytest.mark.parametrize(
    ("value", "level", "word"),
    [
        (0.0, "bad", "no signal"),
        (0.0099, "bad", "no signal"),
        (0.01, "weak", "weak"),
        (0.05, "weak", "weak"),
        (0.051, "good", "good"),
    ],
)
def test_variance(value, level, word):
    verdict = judge_variance(value)
    assert verdict.level == level
    assert word in verdict.words


@pytest.mark.parametrize(
    ("value", "level", "word"),
    [(0.19, "weak", "low"), (0.2, "good", "good"), (0.8, "good", "good"), (0.81, "weak", "high")],
)
def test_entropy(value, level, word):
    verdict = judge_entropy(value)
    assert verdict.level == level
    assert word in verdict.words


def summary(accuracy=0.4, variance=0.15, entropy=0.6, dead=0.2, truncated=0.0, reasons=None) -> dict:
    return {
        "accuracy": {"value": accuracy},
        "score_variance": {"value": variance},
        "group_entropy_bits": {"value": entropy},
        "truncated": {"value": truncated},
        "groups": {"zero_variance": {"share": dead}},
        "reasons": reasons or {"wrong_value": 100},
        "responses": 100,
    }


@pytest.mark.parametrize(
    ("changes", "level", "words"),
    [
        ({}, "good", ["Train:", "80.0% of the groups disagree", "of 32 prompts a step about 26"]),
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
    found = probe(summary(**changes), 32)["recommendation"]
    assert found["level"] == level
    for word in words:
        assert word in found["words"]


def test_the_batch_that_is_left():
    found = probe(summary(dead=0.25), 64)["effective_batch"]
    assert found == {"prompts": 64, "kept": 48.0, "zero_variance_share": 0.25}
    unknown = probe(summary(), None)
    assert unknown["effective_batch"]["kept"] is None
    assert "prompts a step" not in unknown["recommendation"]["words"]


def test_codes_for_unread_answers_are_codes_of_the_rewards():
    from recipes.data.rewards import load_reward
    from recipes.evaluation.probe import UNREAD

    known = {code for task in ("countdown", "gsm8k") for code in load_reward(f"reward_functions/{task}.py").REASONS}
    assert set(UNREAD) <= known
    assert not {"correct", "wrong", "wrong_value", "gold_unparsable"} & set(UNREAD)
