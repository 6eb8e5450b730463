"""Every rule: what it catches, and what it must leave alone."""

from __future__ import annotations

import pytest

from recipes.evaluation.scoring import Score
from recipes.evaluation.suspicious import (
    NO_REASONING,
    REPEATED,
    TAGS_BEFORE_THINKING,
    TARGET_COPIED,
    CommonAnswer,
    SameAnswer,
    flags,
)

FULL, PARTIAL = Score(1.0, 1.0, True, "correct"), Score(0.1, 0.0, False, "wrong")
THOUGHT = "First 3 times 8 is 24, and 1 minus 1 is nothing, so the sum stays 24."
GOLD = '{"target": 24, "numbers": [3, 8, 1, 1]}'
COPIED = f"<think>{THOUGHT}</think><answer>24</answer>"
PROSE = " ".join(f"Step {n}: {n * 37 % 91} plus {n * 53 % 83} makes {n * 37 % 91 + n * 53 % 83}." for n in range(40))


@pytest.mark.parametrize(
    ("text", "gold", "score", "expected"),
    [
        (f"<think>{THOUGHT}</think>\n<answer>3 * 8 + 1 - 1</answer>", GOLD, FULL, []),
        ("<answer>3 * 8 * 1 * 1</answer>", GOLD, FULL, [NO_REASONING]),
        ("<think>28 + 20 - 8 = 40</think>\n<answer>28 + 20 - 8</answer>", GOLD, FULL, []),
        ("8 * 9 makes 72, so the sum is #### 72", GOLD, FULL, []),
        (COPIED, GOLD, PARTIAL, [TARGET_COPIED]),
        (COPIED, "24", FULL, []),
        (f"<answer>3*8</answer><think>{THOUGHT}</think>", GOLD, FULL, [TAGS_BEFORE_THINKING]),
        (f"<think>{THOUGHT}<answer>3*8</answer></think>", GOLD, FULL, [TAGS_BEFORE_THINKING]),
        ("<think>" + "so we try again. " * 40 + "</think><answer>3*8*1*1</answer>", GOLD, FULL, [REPEATED]),
        (PROSE, GOLD, FULL, []),
    ],
)
def test_what_each_rule_raises(text, gold, score, expected):
    assert flags(text, gold, score) == expected


def test_rules_are_linear_in_the_text(cpu_seconds):
    hostile = ["<answer>" * 50_000, "####" * 100_000, r"\boxed{" * 60_000, "<think>" * 50_000, "# " * 200_000]
    assert cpu_seconds(lambda: [flags(text, GOLD, FULL) for text in hostile], enough=5) < 5


@pytest.mark.parametrize(
    ("answers", "golds", "expected"),
    [
        ([["7", str(n)] for n in range(20)], range(20), [CommonAnswer("7", 20, 1.0)]),
        ([["7"]] * 18 + [["8"]] * 2, range(20), [CommonAnswer("7", 18, 0.9)]),
        ([["7"]] * 20, [7] * 20, []),
    ],
    ids=["every group", "nine tenths", "one gold answer"],
)
def test_one_answer_in_every_group(answers, golds, expected):
    same = SameAnswer()
    for group, gold in zip(answers, golds, strict=True):
        same.add(str(gold), [f"#### {answer}" for answer in group])
    assert same.found() == expected
