"""Countdown's reward against a brute-force solver; verdicts.txt has more."""

import random
from collections.abc import Iterator
from fractions import Fraction
from itertools import permutations, product

import pytest

from recipes.rewards.loading import load_reward

countdown = load_reward("reward_functions/countdown.py")


def answer(text: str, gold: object) -> dict:
    return countdown.compute_score("countdown", f"<think>some reasoning</think>\n<answer>{text}</answer>", gold)


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
