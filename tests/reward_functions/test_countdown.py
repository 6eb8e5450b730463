"""Countdown's reward: tables of decided cases."""

from __future__ import annotations

import importlib.util
import json
import time
from pathlib import Path

import pytest

from recipes.paths import ROOT


def load(path: Path):
    spec = importlib.util.spec_from_file_location(f"loaded_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


countdown = load(ROOT / "reward_functions" / "countdown.py")

NUMBERS, TARGET = [3, 8, 1, 1], 24  # (3 * 8) * (1 * 1), 8 * 3 + 1 - 1, ...
GOLD = json.dumps({"target": TARGET, "numbers": NUMBERS})


def score(response: str, gold: object = GOLD, **kwargs) -> dict:
    return countdown.compute_score("countdown", response, gold, **kwargs)


def answer(text: str, gold: object = GOLD) -> dict:
    return score(f"<think>some reasoning</think>\n<answer>{text}</answer>", gold)


RIGHT = [
    "3*8*1*1",
    "(3 * 8) + 1 - 1",
    "3*8+1-1 = 24",
    "24 = 3*8+1-1",
    "3*8+1-1 = 24+0 = 24",
    "3*8+1-1=8*3*1*1=24",
    "\n3*8\n+1-1\n",
    "3 * 8 + 1 - 1\n= 24\n",
    "3 × 8 × 1 ÷ 1",
    "3 · 8 + 1 − 1",
    "3 ⋅ 8 + 1 – 1",
    "3x8x1x1",
    "[3 * 8] * {1 * 1}",
    "（3×8）＋1－1",
    "３×８＋１－１＝２４",
    "3*8+1-1.",
    "$3 \\times 8 + 1 - 1 = 24$",
    "\\[ 3 \\cdot 8 + 1 - 1 \\]",
    "\\left( 3 \\times 8 \\right) \\cdot \\frac{1}{1}",
    "\\frac{3 \\times 8}{1} \\times 1",
    "\\dfrac{3 \\cdot 8}{\\tfrac{1}{1}}",
    "\\boxed{3 \\times 8 \\div 1 \\div 1}",
    "8/(1/3)*1",
    "-1 + 3*8 + 1",
    "-3 * -8 * 1 * 1",
    "1 - -3*8 - 1",
    "+3*8+1-1",
    "(((((((((3))))))))) * 8 * 1 * 1",
    "1 / (1 / (3*8))",
]

# answer -> reason, format, numbers
WRONG = {
    "3*8+1+1": ("wrong_value", 1, 1),
    "3+8+1+1 = 24": ("wrong_value", 1, 1),
    "3*8+1-1 = 25": ("false_equation", 1, 1),
    "25 = 3*8+1-1": ("false_equation", 1, 1),
    "3*8+1-1 = 24 = 25": ("false_equation", 1, 1),
    "3*8": ("wrong_numbers", 1, 0),
    "3*8 = 24": ("wrong_numbers", 1, 0),
    "3*8*1*1*1": ("wrong_numbers", 1, 0),
    "3*8+1-1+0": ("wrong_numbers", 1, 0),
    "12+12": ("wrong_numbers", 1, 0),
    "38*1*1": ("wrong_numbers", 1, 0),  # glued
    "2^3*1": ("forbidden_operator", 0, 0),
    "24": ("target_copied", 0, 0),
    " 24 = 24 ": ("target_copied", 0, 0),
    "\\boxed{24}": ("target_copied", 0, 0),
    "25": ("wrong_numbers", 0, 0),
    "3/(8-8)*1": ("division_by_zero", 1, 0),
    "3*8/(1-1)": ("division_by_zero", 1, 0),
    "1/(3/(8/(1-1)))": ("division_by_zero", 1, 0),
    "(1-1)/(1-1)*3*8": ("division_by_zero", 1, 0),
    "\\frac{3*8}{1-1}": ("division_by_zero", 1, 0),
    "3/\\frac{8}{1-1}": ("division_by_zero", 1, 0),
    "3/\\frac{1-1}{8}": ("division_by_zero", 1, 0),
    "3**8": ("forbidden_operator", 0, 0),
    "9**9**9**9": ("forbidden_operator", 0, 0),
    "3//8": ("forbidden_operator", 0, 0),
    "3^8": ("forbidden_operator", 0, 0),
    "8%3": ("forbidden_operator", 0, 0),
    "3!*4": ("forbidden_operator", 0, 0),
    "": ("no_answer", 0, 0),
    "  \n": ("no_answer", 0, 0),
    "03*8*1*1": ("unparsable", 0, 0),
    "3 8 * 1 * 1": ("unparsable", 0, 0),
    "3*8\n*1 1": ("unparsable", 0, 0),
    "3(8)*1*1": ("unparsable", 0, 0),
    "(3)(8)*1*1": ("unparsable", 0, 0),
    "8\\frac{1}{1}*3": ("unparsable", 0, 0),
    "\\frac12*3*8": ("unparsable", 0, 0),
    "\\frac{3*8}": ("unparsable", 0, 0),
    "\\frac{1}(1)*3*8": ("unparsable", 0, 0),
    "\\frac{}{}": ("unparsable", 0, 0),
    "\\frac": ("unparsable", 0, 0),
    "\\sqrt{3}*8*1*1": ("unparsable", 0, 0),
    "3*8*1*1)": ("unparsable", 0, 0),
    "(3*8*1*1": ("unparsable", 0, 0),
    "(3*8]*1*1": ("unparsable", 0, 0),
    "(3*8=24)*1*1": ("unparsable", 0, 0),
    "()": ("unparsable", 0, 0),
    "3*": ("unparsable", 0, 0),
    "*3": ("unparsable", 0, 0),
    "3*/8": ("unparsable", 0, 0),
    "= 24": ("unparsable", 0, 0),
    "3*8*1*1 =": ("unparsable", 0, 0),
    "3*8*1*1 == 24": ("unparsable", 0, 0),
    "3*8*1*1 ≈ 24": ("unparsable", 0, 0),
    "3*8*1.0*1": ("unparsable", 0, 0),
    "3,8,1,1": ("unparsable", 0, 0),
    "The answer is 3*8*1*1": ("unparsable", 0, 0),
    "3e0*8*1*1": ("unparsable", 0, 0),
    "0x3*8*1*1": ("wrong_numbers", 1, 0),  # 0 times 3
    "٣*8*1*1": ("unparsable", 0, 0),  # a digit of another script
    "³*8*1*1": ("unparsable", 0, 0),
    "3*8*1*1\\": ("unparsable", 0, 0),
    ".": ("unparsable", 0, 0),
    "__import__('os')": ("unparsable", 0, 0),
}


@pytest.mark.parametrize("text", RIGHT)
def test_right_answers_have_full_marks(text):
    assert answer(text) == {
        "score": 1.0, "acc": 1.0, "accuracy": 1.0, "format": 1.0, "numbers": 1.0, "reason": "correct"
    }  # fmt: skip


@pytest.mark.parametrize("text", WRONG)
def test_wrong_answers_have_their_reason_and_credit(text):
    reason, formatted, numbers = WRONG[text]
    result = answer(text)
    assert (result["reason"], result["format"], result["numbers"]) == (reason, formatted, numbers)
    assert result["score"] == pytest.approx(0.1 * formatted + 0.1 * numbers)


def test_every_reason_is_in_a_table():
    seen = {reason for reason, _, _ in WRONG.values()} | {reason for _, reason, _ in RESPONSES.values()}
    assert seen | {"correct", "too_long", "gold_unparsable"} == set(countdown.REASONS)


E1 = "<answer>3*8*1*1</answer>"
W1 = "<answer>3+8+1+1</answer>"
# name -> response, reason, format
RESPONSES = {
    "bare": (E1, "correct", 0),
    "full": (f"<think>so</think>{E1}", "correct", 1),
    "blanks around": (f"\n <think>so</think>\n\n{E1}\n ", "correct", 1),
    "summary before the answer": (f"<think>so</think>\nHence:\n{E1}", "correct", 1),
    "end mark": (f"<think>so</think>{E1}<|im_end|>", "correct", 1),
    "thinking opened by the prompt": (f"so it is</think>\n{E1}", "correct", 1),
    "empty thinking": (f"<think>\n</think>{E1}", "correct", 0),
    "talk behind": (f"<think>so</think>{E1} Done!", "correct", 0),
    "talk before thinking": (f"Hi <think>so</think>{E1}", "correct", 0),
    "several, last right": (f"<think>so</think>{W1} no: {E1}", "correct", 0),
    "several, last wrong": (f"<think>so</think>{E1} no: {W1}", "wrong_value", 0),
    "one in thinking, one behind": (f"<think>try {W1}</think>{E1}", "correct", 1),
    "nested opening": (f"<think>so</think><answer>{E1}", "correct", 0),
    "nested closing": (f"<think>so</think>{E1}</answer>", "correct", 0),
    "in thinking only": (f"<think>so {E1}</think>", "answer_in_think", 0),
    "in thinking only, prompt opened it": (f"so {E1}</think> that is it", "answer_in_think", 0),
    "in thinking that never ends": (f"<think>so {E1}", "answer_in_think", 0),
    "thinking never ends": ("<think>3*8 is 24, then", "truncated", 0),
    "thinks again behind the answer": (f"{E1}<think>wait", "truncated", 0),
    "thinks twice, answer between": (f"<think>a</think>{E1}<think>b</think>", "answer_in_think", 0),
    "thinks twice, answer behind": (f"<think>a</think><think>b</think>{E1}", "correct", 0),
    "answer never ends": ("<think>so</think><answer>3*8*1*1", "truncated", 0),
    "second answer never ends": (f"<think>so</think>{E1} or <answer>3*8", "truncated", 0),
    "closing tag cut": ("<think>so</think><answer>3*8*1*1</answ", "truncated", 0),
    "no tags": ("3*8*1*1 = 24", "no_answer", 0),
    "nothing": ("", "no_answer", 0),
    "thinking only": ("<think>so</think>", "no_answer", 0),
    "boxed only": ("<think>so</think>\\boxed{3*8*1*1}", "no_answer", 0),
    "other case": ("<think>so</think><ANSWER>3*8*1*1</ANSWER>", "no_answer", 0),
    "prompt repeated": (
        "Reason in <think> </think>, then write the equation in <answer> </answer>, for example "
        f"<answer>(1 + 2) / 3</answer>.<|im_end|>\n<|im_start|>assistant\n<think>so</think>\n{E1}",
        "correct",
        0,
    ),
    "prompt repeated, nothing more": (
        "Reason in <think> </think>, for example <answer>(1 + 2) / 3</answer>.", "wrong_numbers", 0
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RESPONSES)
def test_where_the_answer_is_found(name):
    response, reason, formatted = RESPONSES[name]
    result = score(response)
    assert (result["reason"], result["format"]) == (reason, formatted)


@pytest.mark.parametrize("depth", [400, 100_000])
def test_deep_nesting_and_long_answers_are_rejected_at_once(depth):
    begin = time.process_time()
    result = answer("(" * depth + "3" + ")" * depth + "*8*1*1")
    assert result["reason"] == ("correct" if 2 * depth < countdown.MAX_ANSWER else "too_long")
    assert answer("9" + "*9" * depth + "**9")["reason"] == ("forbidden_operator" if depth == 400 else "too_long")
    assert time.process_time() - begin < 0.1


@pytest.mark.parametrize(
    "gold",
    [
        {"target": 24, "numbers": [3, 8, 1, 1]},
        {"numbers": (1, 8, 1, 3), "target": 24, "extra": None},
        ' {"numbers": [3, 8, 1, 1], "target": 24}\n',
    ],
)
def test_truths_that_are_read(gold):
    assert answer("3*8*1*1", gold)["score"] == 1.0


def test_numpy_truth_is_read():
    numpy = pytest.importorskip("numpy")
    assert answer("3*8*1*1", {"target": numpy.int64(24), "numbers": numpy.array([3, 8, 1, 1])})["score"] == 1.0


@pytest.mark.parametrize(
    "gold",
    [
        '{"target": 24}', '{"numbers": [3, 8]}', '{"target": "24", "numbers": [3, 8]}',
        '{"target": 24.0, "numbers": [3]}',
        '{"target": 24, "numbers": []}', '{"target": 24, "numbers": "38"}', '{"target": 24, "numbers": [3, null]}',
        '{"target": true, "numbers": [1]}', '{"target": 24, "numbers": [3, -8]}', '{"target": 24, "numbers": 3}',
        '{"target": 24, "numbers": [3, 8]} x', '"24"', "24", [24, [3, 8]], 24,
    ],
)  # fmt: skip
def test_broken_truths_score_zero_with_their_own_reason(gold):
    result = answer("3*8", gold)
    assert (result["score"], result["format"], result["reason"]) == (0.0, 0.0, "gold_unparsable")


def test_getting_closer_never_costs():
    """Each rung holds everything of the rung below, and no sum of partial credits comes near a right answer."""
    ladder = [score(r)["score"] for r in ("", "<think>so</think><answer>3*8</answer>", f"<think>so</think>{W1}", E1)]
    assert ladder == [0.0, 0.1, 0.2, 1.0]
    assert ladder[-1] >= 5 * ladder[-2]


def test_credits_can_be_switched_off():
    assert score(f"<think>so</think>{W1}", format_credit=0.0, numbers_credit=0.0)["score"] == 0.0
    assert score(E1, format_credit=0.0, numbers_credit=0.0)["score"] == 1.0
