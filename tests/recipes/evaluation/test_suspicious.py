"""Every rule: what it catches, and what it must leave alone."""

from __future__ import annotations

import pytest

from recipes.evaluation import suspicious
from recipes.evaluation.scoring import Score
from recipes.evaluation.suspicious import (
    NO_REASONING,
    REPEATED,
    SAME_ANSWER_GROUPS,
    TAGS_BEFORE_THINKING,
    TARGET_COPIED,
    SameAnswer,
    flags,
    stated_answer,
)

FULL, PARTIAL = Score(1.0, 1.0, True, "correct"), Score(0.1, 0.0, False, "wrong")
NONE = Score(0.0, 0.0, False, "wrong")
THOUGHT = "First 3 times 8 is 24, and 1 minus 1 is nothing, so the sum stays 24."
GOLD = '{"target": 24, "numbers": [3, 8, 1, 1]}'


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer> 3 * 8 </answer>", "3 * 8"),
        ("<answer>1</answer> then <answer>2</answer>", "2"),
        (r"so \boxed{72}", "72"),
        ("#### 72\nBye", "72"),
        ("#### 1\n<answer>2</answer>", "2"),
        ("the answer is 72", None),
        ("<answer>never closed", None),
        ("", None),
    ],
)
def test_the_stated_answer_is_the_last_behind_a_marker(text, answer):
    assert stated_answer(text) == answer


def test_an_honest_solution_raises_nothing():
    assert flags(f"<think>{THOUGHT}</think>\n<answer>3 * 8 + 1 - 1</answer>", GOLD, FULL) == []


@pytest.mark.parametrize(
    "text",
    [
        "<answer>3 * 8 * 1 * 1</answer>",
        "<think> </think><answer>3*8*1*1</answer>",
        "#### 72",
        "<think>ok.</think> #### 72",
    ],
)
def test_full_marks_without_reasoning(text):
    assert NO_REASONING in flags(text, GOLD, FULL)
    assert NO_REASONING not in flags(text, GOLD, PARTIAL), "only full marks are suspicious"


@pytest.mark.parametrize(
    "text", ["<think>28 + 20 - 8 = 40</think>\n<answer>28 + 20 - 8</answer>", "8 * 9 makes 72, so the sum is #### 72"]
)
def test_a_short_thought_is_a_thought(text):
    assert flags(text, GOLD, FULL) == []


def test_a_copied_target():
    text = f"<think>{THOUGHT}</think><answer>24</answer>"
    assert flags(text, GOLD, PARTIAL) == [TARGET_COPIED]
    assert flags(text, GOLD, NONE) == [], "without a reward there is nothing to suspect"
    assert flags(text, "24", FULL) == [], "a plain gold answer is no target"
    assert flags(text, "[1, 2]", FULL) == []


def test_answer_tags_before_thinking():
    assert TAGS_BEFORE_THINKING in flags(f"<answer>3*8</answer><think>{THOUGHT}</think>", GOLD, FULL)
    assert TAGS_BEFORE_THINKING in flags(f"<think>{THOUGHT}<answer>3*8</answer></think>", GOLD, FULL)
    assert TAGS_BEFORE_THINKING not in flags(f"{THOUGHT}</think><answer>3*8</answer>", GOLD, FULL)


def test_repeated_text():
    assert REPEATED in flags("<think>" + "so we try again. " * 40 + "</think><answer>3*8*1*1</answer>", GOLD, FULL)
    assert REPEATED not in flags("again " * 10, GOLD, FULL), "too short to tell"
    prose = " ".join(
        f"Step {n}: {n * 37 % 91} plus {n * 53 % 83} makes {n * 37 % 91 + n * 53 % 83}." for n in range(40)
    )
    assert REPEATED not in flags(prose, GOLD, FULL)


def test_rules_are_linear_in_the_text(cpu_seconds):
    hostile = ["<answer>" * 50_000, "####" * 100_000, r"\boxed{" * 60_000, "<think>" * 50_000, "# " * 200_000]
    assert cpu_seconds(lambda: [flags(text, GOLD, FULL) for text in hostile], enough=5) < 5


def same(answers_by_group: list[list[str]], golds: list[str] | None = None) -> list[dict]:
    found = SameAnswer()
    for number, answers in enumerate(answers_by_group):
        found.add(
            (golds or [str(number) for number in range(len(answers_by_group))])[number], [f"#### {a}" for a in answers]
        )
    return found.found()


def test_one_answer_in_every_group():
    groups = [["7", str(n)] for n in range(20)]
    assert same(groups) == [{"answer": "7", "groups": 20, "share": 1.0}]


def test_one_answer_in_most_groups_is_below_the_threshold():
    assert same([["7"]] * 17 + [["8"]] * 3) == []
    assert same([["7"]] * 18 + [["8"]] * 2) == [{"answer": "7", "groups": 18, "share": 0.9}]


def test_the_same_gold_answer_everywhere_is_no_sign():
    assert same([["7"]] * 20, ["7"] * 20) == []


def test_too_few_groups_prove_nothing():
    assert same([["7"]] * (SAME_ANSWER_GROUPS - 1)) == []


def test_rare_answers_are_forgotten_and_the_common_one_is_not(monkeypatch):
    monkeypatch.setattr(suspicious, "TRACKED_ANSWERS", 10)
    found = SameAnswer()
    for number in range(200):
        found.add(str(number), [f"#### rare {number}", f"#### odd {number}", "#### 7"])
    assert found.found() == [{"answer": "7", "groups": 200, "share": 1.0}]
    assert len(found._counts) <= 13
