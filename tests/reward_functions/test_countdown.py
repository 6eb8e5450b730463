"""Countdown's reward against a brute-force solver and TinyZero's rule; verdicts.txt has more."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from fractions import Fraction
from itertools import permutations, product

import pytest

from recipes.data.rewards import load_reward

countdown = load_reward("reward_functions/countdown.py")
public = load_reward("tests/reward_functions/public_graders.py")

NUMBERS, TARGET = [3, 8, 1, 1], 24  # (3 * 8) * (1 * 1), 8 * 3 + 1 - 1, ...
GOLD = json.dumps({"target": TARGET, "numbers": NUMBERS})


def score(response: str, gold: object = GOLD, **kwargs) -> dict:
    return countdown.compute_score("countdown", response, gold, **kwargs)


def answer(text: str, gold: object = GOLD) -> dict:
    return score(f"<think>some reasoning</think>\n<answer>{text}</answer>", gold)


E1 = "<answer>3*8*1*1</answer>"
W1 = "<answer>3+8+1+1</answer>"


def expressions(numbers: tuple[int, ...]) -> Iterator[tuple[str, Fraction | None]]:
    """Every expression over the numbers in this order, and its exact value; None where it divides by zero."""
    if len(numbers) == 1:
        yield str(numbers[0]), Fraction(numbers[0])
    for cut in range(1, len(numbers)):
        for (left, a), (right, b) in product(expressions(numbers[:cut]), expressions(numbers[cut:])):
            if a is None or b is None:
                values = dict.fromkeys("+-*/")
            else:
                values = {"+": a + b, "-": a - b, "*": a * b, "/": a / b if b else None}
            yield from ((f"({left} {sign} {right})", value) for sign, value in values.items())


NOTATIONS = [str.maketrans("+-*/() ", signs) for signs in ("+-*/() ", "+−×÷（） ", "＋–·∕[]\n", "+-x/{}\u00a0")]


@pytest.mark.parametrize("numbers", [(3, 8, 2), (7, 7, 5), (25, 50, 3, 6), (4, 4, 10, 10)])
def test_agrees_with_brute_force_on_every_expression(numbers):
    """All trees over all orders, each in a random notation, against a target that they can make."""
    rng = random.Random(hash(numbers))
    values = [each for order in sorted(set(permutations(numbers))) for each in expressions(order)]
    whole = sorted({int(v) for _, v in values if v is not None and v.denominator == 1 and v > 0})
    target = rng.choice(whole)
    for plain, exact in values:
        text = plain.translate(rng.choice(NOTATIONS))
        expected = "division_by_zero" if exact is None else "correct" if exact == target else "wrong_value"
        gold = {"target": target, "numbers": list(numbers)}
        assert answer(text, gold)["reason"] == expected, (text, exact, target)
        if expected == "correct":
            assert {answer(each, gold)["score"] for each in (f"{text} = {target}", f"{target} = {text}")} == {1.0}
            assert answer(f"{text} = {target + 1}", gold)["reason"] == "false_equation"


# Where TinyZero's rule (in `public_graders`) decides otherwise: response, ours, TinyZero's.
AGAINST_TINYZERO = [
    (E1, 1.0, 1.0), (f"{W1} no, {E1}", 1.0, 1.0), (f"{E1} no, {W1}", 0.1, 0.1), ("3*8*1*1", 0.0, 0.0),
    ("<think>so</think><answer>3*8/(1-1)</answer>", 0.1, 0.1),
    # Right equations that it calls wrong: it reads the last line only, needs ASCII, and cannot take a `=`.
    ("<answer>3*8\n*1*1</answer>", 1.0, 0.0), (f"{E1}\nDone.", 1.0, 0.0), ("<answer>3*8*1*1 = 24</answer>", 1.0, 0.1),
    ("<answer>3×8×1×1</answer>", 1.0, 0.1), ("<answer>3*8+1−1</answer>", 1.0, 0.1),
    ("<answer>[3*8]*1*1</answer>", 1.0, 0.1),
    (r"<answer>3 \times 8 \cdot 1 / 1</answer>", 0.0, 0.1), ("<answer>3*8\u00a0*1*1</answer>", 1.0, 0.1),
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
