"""Countdown's reward: tables of decided cases, a brute-force solver, TinyZero's rule, Python's own parser."""

from __future__ import annotations

import ast
import json
import random
import re
from fractions import Fraction

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from recipes.data.rewards import load_reward

countdown = load_reward("reward_functions/countdown.py")
brute = load_reward("tests/reward_functions/countdown_trees.py")
public = load_reward("tests/reward_functions/public_graders.py")

NUMBERS, TARGET = [3, 8, 1, 1], 24  # (3 * 8) * (1 * 1), 8 * 3 + 1 - 1, ...
GOLD = json.dumps({"target": TARGET, "numbers": NUMBERS})


def score(response: str, gold: object = GOLD, **kwargs) -> dict:
    return countdown.compute_score("countdown", response, gold, **kwargs)


def answer(text: str, gold: object = GOLD) -> dict:
    return score(f"<think>some reasoning</think>\n<answer>{text}</answer>", gold)


RIGHT = [
    "3*8*1*1", "(3 * 8) + 1 - 1", "3*8+1-1 = 24", "24 = 3*8+1-1", "3*8+1-1 = 24+0 = 24", "3*8+1-1=8*3*1*1=24",
    "\n3*8\n+1-1\n", "3 * 8 + 1 - 1\n= 24\n", "3 × 8 × 1 ÷ 1", "3 · 8 + 1 − 1", "3 ⋅ 8 + 1 – 1", "3x8x1x1",
    "[3 * 8] * {1 * 1}", "（3×8）＋1－1", "３×８＋１－１＝２４", "3*8+1-1.", "$3 \\times 8 + 1 - 1 = 24$",
    "\\[ 3 \\cdot 8 + 1 - 1 \\]", "\\left( 3 \\times 8 \\right) \\cdot \\frac{1}{1}",
    "\\frac{3 \\times 8}{1} \\times 1", "\\dfrac{3 \\cdot 8}{\\tfrac{1}{1}}", "\\boxed{3 \\times 8 \\div 1 \\div 1}",
    "8/(1/3)*1", "-1 + 3*8 + 1", "-3 * -8 * 1 * 1", "1 - -3*8 - 1", "+3*8+1-1", "(((((((((3))))))))) * 8 * 1 * 1",
    "1 / (1 / (3*8))",
]  # fmt: skip

# reason, format, numbers -> answers
WRONG = {
    ("wrong_value", 1, 1): ["3*8+1+1", "3+8+1+1 = 24"],
    ("false_equation", 1, 1): ["3*8+1-1 = 25", "25 = 3*8+1-1", "3*8+1-1 = 24 = 25"],
    ("wrong_numbers", 1, 0): ["3*8", "3*8 = 24", "3*8*1*1*1", "3*8+1-1+0", "12+12", "38*1*1", "0x3*8*1*1"],
    ("forbidden_operator", 0, 0): ["2^3*1", "3**8", "9**9**9**9", "3//8", "3^8", "8%3", "3!*4"],
    ("target_copied", 0, 0): ["24", " 24 = 24 ", "\\boxed{24}"],
    ("wrong_numbers", 0, 0): ["25"],
    ("division_by_zero", 1, 0): [
        "3/(8-8)*1", "3*8/(1-1)", "1/(3/(8/(1-1)))", "(1-1)/(1-1)*3*8", "\\frac{3*8}{1-1}", "3/\\frac{8}{1-1}",
        "3/\\frac{1-1}{8}",
    ],
    ("no_answer", 0, 0): ["", "  \n"],
    ("unparsable", 0, 0): [
        "03*8*1*1", "3 8 * 1 * 1", "3*8\n*1 1", "3(8)*1*1", "(3)(8)*1*1", "8\\frac{1}{1}*3", "\\frac12*3*8",
        "\\frac{3*8}", "\\frac{1}(1)*3*8", "\\frac{}{}", "\\frac", "\\sqrt{3}*8*1*1", "3*8*1*1)", "(3*8*1*1",
        "(3*8]*1*1", "(3*8=24)*1*1", "()", "3*", "*3", "3*/8", "= 24", "3*8*1*1 =", "3*8*1*1 == 24", "3*8*1*1 ≈ 24",
        "3*8*1.0*1", "3,8,1,1", "The answer is 3*8*1*1", "3e0*8*1*1", "٣*8*1*1", "³*8*1*1", "3*8*1*1\\", ".",
        "__import__('os')",
    ],
}  # fmt: skip


@pytest.mark.parametrize("text", RIGHT)
def test_right_answers_have_full_marks(text):
    assert answer(text) == {
        "score": 1.0, "acc": 1.0, "accuracy": 1.0, "format": 1.0, "numbers": 1.0, "reason": "correct"
    }  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), [(text, key) for key, texts in WRONG.items() for text in texts])
def test_wrong_answers_have_their_reason_and_credit(text, expected):
    reason, formatted, numbers = expected
    result = answer(text)
    assert (result["reason"], result["format"], result["numbers"]) == (reason, formatted, numbers)
    assert result["score"] == pytest.approx(0.1 * formatted + 0.1 * numbers)


E1 = "<answer>3*8*1*1</answer>"
W1 = "<answer>3+8+1+1</answer>"
THOUGHT = "<think>so</think>"
# (reason, format) -> responses
RESPONSES = {
    ("correct", 1): [
        f"{THOUGHT}{E1}", f"\n {THOUGHT}\n\n{E1}\n ", f"{THOUGHT}\nHence:\n{E1}", f"{THOUGHT}{E1}<|im_end|>",
        f"so it is</think>\n{E1}", f"<think>try {W1}</think>{E1}",
    ],
    ("correct", 0): [
        E1, f"<think>\n</think>{E1}", f"{THOUGHT}{E1} Done!", f"Hi {THOUGHT}{E1}", f"{THOUGHT}{W1} no: {E1}",
        f"{THOUGHT}<answer>{E1}", f"{THOUGHT}{E1}</answer>", f"<think>a</think>{THOUGHT}{E1}",
        f"Write it in <answer> </answer>, such as <answer>(1 + 2) / 3</answer>.<|im_end|>\n{THOUGHT}\n{E1}",
    ],
    ("wrong_value", 0): [f"{THOUGHT}{E1} no: {W1}"],
    ("wrong_numbers", 0): ["Reason in <think> </think>, for example <answer>(1 + 2) / 3</answer>."],
    ("answer_in_think", 0): [
        f"<think>so {E1}</think>", f"so {E1}</think> that is it", f"<think>so {E1}",
        f"<think>a</think>{E1}<think>b</think>",
    ],
    ("truncated", 0): [
        "<think>3*8 is 24, then", f"{E1}<think>wait", f"{THOUGHT}<answer>3*8*1*1", f"{THOUGHT}{E1} or <answer>3*8",
        f"{THOUGHT}<answer>3*8*1*1</answ",
    ],
    ("no_answer", 0): [
        "3*8*1*1 = 24", "", THOUGHT, f"{THOUGHT}\\boxed{{3*8*1*1}}", f"{THOUGHT}<ANSWER>3*8*1*1</ANSWER>",
    ],
}  # fmt: skip


@pytest.mark.parametrize(("response", "expected"), [(text, key) for key, texts in RESPONSES.items() for text in texts])
def test_where_the_answer_is_found(response, expected):
    result = score(response)
    assert (result["reason"], result["format"]) == expected


def test_truths():
    numpy = pytest.importorskip("numpy")
    for gold in (
        {"numbers": (1, 8, 1, 3), "target": 24, "extra": None},
        ' {"numbers": [3, 8, 1, 1], "target": 24}\n',
        {"target": numpy.int64(24), "numbers": numpy.array([3, 8, 1, 1])},
    ):
        assert answer("3*8*1*1", gold)["score"] == 1.0
    numbers = ["[]", '"38"', "[3, null]", "[3, -8]", "3", "[3, 8]} x"]
    for gold in (
        *('{"target": 24}', '{"numbers": [3, 8]}', '{"target": "24", "numbers": [3, 8]}', "24", [24, [3, 8]], 24),
        *('{"target": 24.0, "numbers": [3]}', '{"target": true, "numbers": [1]}', '"24"'),
        *(f'{{"target": 24, "numbers": {text}}}' for text in numbers),
    ):
        result = answer("3*8", gold)
        assert (result["score"], result["format"], result["reason"]) == (0.0, 0.0, "gold_unparsable"), gold


@pytest.mark.parametrize("numbers", [(3, 8, 2), (7, 7, 5), (25, 50, 3, 6), (4, 4, 10, 10)])
def test_agrees_with_brute_force_on_every_expression(numbers):
    """All trees over all orders, each in a random notation, against a target that they can make."""
    rng = random.Random(hash(numbers))
    values = [(tree, brute.value(tree)) for tree in brute.all_trees(numbers)]
    whole = sorted({int(v) for _, v in values if v is not None and v.denominator == 1 and v > 0})
    target = rng.choice(whole)
    for tree, exact in values:
        text = brute.render(tree, rng.choice(list(brute.NOTATIONS)), rng)
        expected = "division_by_zero" if exact is None else "correct" if exact == target else "wrong_value"
        gold = {"target": target, "numbers": list(numbers)}
        assert answer(text, gold)["reason"] == expected, (text, exact, target)
        if expected == "correct":
            assert {answer(each, gold)["score"] for each in (f"{text} = {target}", f"{target} = {text}")} == {1.0}
            assert answer(f"{text} = {target + 1}", gold)["reason"] == "false_equation"


PROBLEMS = st.tuples(st.lists(st.integers(1, 99), min_size=3, max_size=4), st.integers(0, 2**32))


def solved(problem: tuple[list[int], int]) -> tuple[random.Random, object, int, dict]:
    """A random problem that its own random tree solves: (rng, tree, target, truth)."""
    numbers, seed = problem
    rng = random.Random(seed)
    tree = brute.random_tree(rng, numbers)
    exact = brute.value(tree)
    assume(exact is not None and exact.denominator == 1)
    return rng, tree, int(exact), {"target": int(exact), "numbers": rng.sample(numbers, len(numbers))}


PLAIN = (
    *(ast.Expression, ast.Constant, ast.UnaryOp, ast.UAdd, ast.USub),
    *(ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.Div),
)


def python_value(text: str) -> tuple[Fraction | None, list[int]] | None:
    """Exact value and numbers by Python's own parser; None where the text is no +, -, *, / expression."""
    try:
        nodes = list(ast.walk(ast.parse(text.strip(), mode="eval")))
    except SyntaxError:
        return None
    if not all(isinstance(node, PLAIN) for node in nodes):
        return None
    numbers = [node.value for node in nodes if isinstance(node, ast.Constant)]
    try:
        return eval(re.sub(r"\d+", r"Fraction(\g<0>)", text.strip())), numbers
    except ZeroDivisionError:
        return None, numbers


@pytest.mark.filterwarnings("ignore::SyntaxWarning")
@settings(max_examples=400, deadline=None)
@given(text=st.lists(st.sampled_from([*"0123456789", *"+-*/()" * 2, " ", "12"]), min_size=1, max_size=14).map("".join))
def test_reads_what_python_reads(text):
    """Random strings over Python's own alphabet: the same language and the same exact values."""
    assume(text.strip())
    read = python_value(text)
    any_gold = {"target": 1, "numbers": [1]}
    if read is None or re.search(r"\b0[0-9]", text):  # Python takes 00 as a number
        assert answer(text, any_gold)["reason"] in {"unparsable", "forbidden_operator"}
        return
    exact, numbers = read
    if exact is None:
        assert answer(text, any_gold)["reason"] == "division_by_zero"
        return
    gold = {"target": exact.numerator, "numbers": numbers}
    assert answer(text, gold)["reason"] == ("correct" if exact.denominator == 1 else "wrong_value")


# Where TinyZero's rule (in `public_graders`) decides otherwise: response, ours, TinyZero's.
AGAINST_TINYZERO = [
    (E1, 1.0, 1.0), (f"{W1} no, {E1}", 1.0, 1.0), (f"{E1} no, {W1}", 0.1, 0.1), ("3*8*1*1", 0.0, 0.0),
    ("<think>so</think><answer>3*8/(1-1)</answer>", 0.1, 0.1),
    # Right equations that it calls wrong: it reads the last line only, needs ASCII, and cannot take a `=`.
    ("<answer>3*8\n*1*1</answer>", 1.0, 0.0), (f"{E1}\nDone.", 1.0, 0.0), ("<answer>3*8*1*1 = 24</answer>", 1.0, 0.1),
    ("<answer>3×8×1×1</answer>", 1.0, 0.1), ("<answer>3*8+1−1</answer>", 1.0, 0.1),
    ("<answer>[3*8]*1*1</answer>", 1.0, 0.1),
    (r"<answer>3 \times 8 \cdot \frac{1}{1}</answer>", 1.0, 0.1), ("<answer>3*8\u00a0*1*1</answer>", 1.0, 0.1),
    # Answers that it takes although none was given, and Python's operators that the game does not have.
    (f"<think>is it {E1}", 0.0, 1.0), (f"{E1} no, <answer>3+", 0.0, 1.0),
    ("<answer>8*3//1//1</answer>", 0.0, 1.0), ("<answer>8*3**1**1</answer>", 0.0, 1.0),
    # Credit of 0.1 that it gives to any block at all.
    ("<answer>24</answer>", 0.0, 0.1), ("<answer>3*8+1-01</answer>", 0.0, 0.1), ("<answer></answer>", 0.0, 0.1),
    ("<answer>three times eight</answer>", 0.0, 0.1), ("<answer>12+12</answer>", 0.0, 0.1),
]  # fmt: skip


def test_against_tinyzero():
    for response, ours, theirs in AGAINST_TINYZERO:
        assert score(response)["score"] == pytest.approx(ours), response
        assert public.tinyzero_score("Assistant:" + response, TARGET, NUMBERS) == pytest.approx(theirs), response
    gold = {"target": 1, "numbers": [1000001, 1000000]}  # a quotient that its tolerance takes for 1
    response = "<answer>1000001/1000000</answer>"
    assert public.tinyzero_score("Assistant:" + response, 1, gold["numbers"]) == 1.0
    assert score(response, gold)["reason"] == "wrong_value"


@settings(max_examples=150, deadline=None)
@given(problem=PROBLEMS, data=st.data())
def test_plain_answers_are_judged_as_tinyzero_judges_them(problem, data):
    """ASCII expressions on one line, right or wrong, without the cases listed above: the same verdict."""
    rng, tree, _, gold = solved(problem)
    other = brute.random_tree(rng, gold["numbers"])
    shown = data.draw(st.sampled_from([tree, other]))
    text = " ".join(brute.render(shown, "ascii", rng).split()).replace("[", "(").replace("]", ")")
    theirs = public.tinyzero_score(f"Assistant:<answer>{text}</answer>", gold["target"], gold["numbers"])
    assert (score(f"<answer>{text}</answer>", gold)["score"] == 1.0) == (theirs == 1.0)
