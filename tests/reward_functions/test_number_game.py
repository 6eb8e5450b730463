"""The number game's reward: tables of decided cases, and the list where EasyR1's first-digit rule decides otherwise."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipes.data.rewards import load_reward
from recipes.tasks.number_game.data import gold_response

number_game = load_reward("reward_functions/number_game.py")
easyr1 = load_reward("tests/reward_functions/public_graders.py").easyr1_number_game


def score(response: str, gold: object = "2", **kwargs) -> dict:
    return number_game.compute_score("number_game", response, gold, **kwargs)


AS_ASKED = [
    "2", " 2\n", "2.", "**2**", "`2`", '"2"', "Answer: 2", "answer: 2.", "ANSWER: 2", "**Answer:** 2",
    "**Answer**: 2", "Answer:\n2", "Answer = 2", "The answer is 2.", "The answer is **2**",
    "The answer is: position 2", "答案：2", "答案是2。", "Answer: (2)", "Answer: [2].", "<answer>2</answer>",
    "<ANSWER>2</ANSWER>", "<answer> 2 </answer>\n", "<answer>2</answer><|im_end|>", "<answer>\\boxed{2}</answer>",
    "2<|im_end|>", "$\\boxed{2}$", "２", "答案：２", "…10, 4, 7. Answer: 2", "The light is not red. Answer: 2",
    "The light is green, the cards show 1, 4, 7. Answer: 2", "Answer: 0? No. Answer: 2",
    "\\boxed{1} no: <answer>2</answer>", "<think>0 or 1?</think>2", "<think>answer: 0</think>\nAnswer: 2",
    "0 or 1? </think> 2",
]  # fmt: skip
OTHERWISE = [
    "I choose option 2", "Position 2 is right.", "2 (right)", "Answer: 2 because it beats the rest",
    "Answer: 2 because 7 beats the rest", "The answer is 2, since 9 is the largest.", "答案是2，因为9最大。",
    "Answer: 2\nThe cards show 1, 4, 7.", "Answer: 2 (the card with 7)", "Answer: 2. The light is green.",
    "<answer>2</answer> is my choice", "Not the left, so 2", "Answer: 2 (not 1)",
]  # fmt: skip
# reason -> responses
NOT_RIGHT = {
    "wrong": ["0", "Answer: 1", "The card with 2 wins. Answer: 0", "Answer: 2. No, wait. Answer: 1"],
    "out_of_range": [
        "7", "12", "20", "minus 2", "Answer: −2", "－2", "2²", "2!", "2%", "2 percent", "2½", "√2", ">2", "2 thousand",
        "2 and a half", "half of 2", "2^", "2‰", "2?", "02", "-2", "2.0", "Answer: 22", "Answer: 7",
        "The card with 9",
    ],
    "ambiguous": [
        "not 2", "The answer is not 2", "it isn't 2", "Answer: never 2", "答案不是2", "far from 2", "anything but 2",
        "maybe 2", "either 2", "答案可能是2", "other than 2", "1;2", "Answer: 1;2", "Answer: 2; 1", "1/2", "1|2",
        "Answer: 1. 2", "Answer: 2 (or 1)", "2. No wait, the left", "Answer: 2. No, it is left",
        "<answer>2</answer> Wait, no.", "Answer: 2, or rather left", "2 is wrong", "Answer: 2 is not right", "0 1 2",
        "0, 1, 2", "2 2", "1 or 2", "Answer: 2, 7 beats the rest", "<answer>0 2</answer>", "10, 4, 7 so 2",
    ],
    "unparsable": [
        "Answer: because 2 is left", "Answer: right", "Answer: the 2nd card", "<answer></answer>", "\\boxed{two}",
    ],
    "no_answer": ["", "right", "the 2nd card", "card_2", "٢", "²"],
    "answer_in_think": ["<think>Answer: 2</think>", "Answer: 2</think>"],
    "truncated": ["<think>Answer: 2", "Answer: 2 <think>", "<answer>2", "\\boxed{2", "Answer:", "The answer is "],
}  # fmt: skip


@pytest.mark.parametrize("response", AS_ASKED)
def test_full_marks(response):
    for gold, score_, reason in (("2", 1.0, "correct"), ("1", 0.1, "wrong")):
        result = score(response, gold)
        assert (result["score"], result["reason"], result["pred"]) == (score_, reason, "2")


def test_truths():
    assert [score(gold_response(position), str(position))["score"] for position in range(3)] == [1.0] * 3
    assert score("1", 1)["score"] == score("1", " 1 ")["score"] == 1.0
    for gold in ("3", "-1", "", "left", "1.0", "12", 3, 1.0, True):
        assert (score("1", gold)["score"], score("1", gold)["reason"]) == (0.0, "gold_unparsable"), gold


@pytest.mark.parametrize("response", OTHERWISE)
def test_right_but_not_as_asked(response):
    result = score(response)
    assert (result["score"], result["accuracy"], result["format"]) == (0.9, 1.0, 0.0)
    assert score(response, "0")["score"] == 0.0


@pytest.mark.parametrize(("response", "reason"), [(text, reason) for reason in NOT_RIGHT for text in NOT_RIGHT[reason]])
def test_not_right(response, reason):
    result = score(response)
    assert (result["reason"], result["accuracy"], result["score"]) == (reason, 0.0, 0.1 if reason == "wrong" else 0.0)


# Where EasyR1's rule (the first 0, 1 or 2 anywhere is the answer) decides otherwise, and where not: response, the right
# position, ours, EasyR1's. docs/REWARD_NUMBER_GAME.md has the same list in words.
AGAINST_EASYR1 = [
    ("10, 4, 7. Answer: 2", "2", 1, 0), ("The cards show 1, 5, 9, the light is green. Answer: 2", "2", 1, 0),
    ("The cards show 1, 5, 9, the light is green. Answer: 2", "1", 0, 1),
    ("Round 2: red light, smallest is 3 on the left. Answer: 0", "0", 1, 0),
    ("0 is left, 1 is middle, 2 is right. <answer>1</answer>", "1", 1, 0), ("Not 0. Answer: 1", "0", 0, 1),
    ("<think>Is it 0?</think>1", "1", 1, 0), ("<think>It may be 1, or", "1", 0, 1),
    ("Answer: 1. No, wait. Answer: 2", "2", 1, 0), ("0 1 2", "0", 0, 1), ("1 or 2", "1", 0, 1), ("12", "1", 0, 1),
    ("20", "2", 0, 1), ("-1", "1", 0, 1), ("1.5", "1", 0, 1), ("Answer: 7, since 7 > 2", "2", 0, 1),
    ("the 2nd card", "2", 0, 1), ("level1 done", "1", 0, 1),
    ("2", "2", 1, 1), (" 1 ", "1", 1, 1), ("I choose option 2", "2", 1, 1), ("0", "1", 0, 0), ("", "0", 0, 0),
]  # fmt: skip


@pytest.mark.parametrize(("response", "gold", "ours", "theirs"), AGAINST_EASYR1)
def test_against_easyr1(response, gold, ours, theirs):
    assert (score(response, gold)["accuracy"], easyr1(response) == gold) == (ours, theirs)


@settings(max_examples=100, deadline=None)
@given(digits=st.permutations(range(1, 10)), position=st.sampled_from("012"), gold=st.sampled_from("012"))
def test_cards_in_the_reasoning_do_not_matter(digits, position, gold):
    cards = ", ".join(map(str, digits[:3]))
    for end in (f"Answer: {position}", f"<answer>{position}</answer>", f"So the answer is {position}."):
        assert score(f"The cards are {cards}. {end}", gold)["score"] == (1.0 if position == gold else 0.1)
