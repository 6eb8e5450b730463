"""A brute-force side of Countdown, apart from the reward: expression trees, their exact values, and many notations."""

from __future__ import annotations

import random
from collections.abc import Iterator
from fractions import Fraction
from itertools import permutations

Tree = "int | tuple[str, Tree, Tree]"


def trees(numbers: tuple[int, ...]) -> Iterator[Tree]:
    """Every binary tree over the numbers in this order, with every choice of operators."""
    if len(numbers) == 1:
        yield numbers[0]
        return
    for cut in range(1, len(numbers)):
        for left in trees(numbers[:cut]):
            for right in trees(numbers[cut:]):
                for op in "+-*/":
                    yield (op, left, right)


def all_trees(numbers: tuple[int, ...]) -> Iterator[Tree]:
    """Every expression that uses each number exactly once: 192 for three different numbers, 7,680 for four."""
    for order in sorted(set(permutations(numbers))):
        yield from trees(order)


def value(tree: Tree) -> Fraction | None:
    """The exact value; None where it divides by zero."""
    if isinstance(tree, int):
        return Fraction(tree)
    op, left, right = tree[0], value(tree[1]), value(tree[2])
    if left is None or right is None or (op == "/" and right == 0):
        return None
    return {"+": left.__add__, "-": left.__sub__, "*": left.__mul__, "/": left.__truediv__}[op](right)


NOTATIONS = {
    "ascii": {"+": "+", "-": "-", "*": "*", "/": "/"},
    "unicode": {"+": "+", "-": "−", "*": "×", "/": "÷"},
    "dots": {"+": "＋", "-": "–", "*": "·", "/": "∕"},
    "letters": {"+": "+", "-": "-", "*": "x", "/": "/"},
}
_BRACKETS = {
    "ascii": ("()", "[]"),
    "unicode": ("()", "（）"),
    "dots": ("()", "[]"),
    "letters": ("()", "{}"),
}


def render(tree: Tree, notation: str, rng: random.Random) -> str:
    """The tree in this notation, with random blanks and sometimes brackets that are not needed."""
    return _render(tree, notation, rng, 0)


def _render(tree: Tree, notation: str, rng: random.Random, outside: int) -> str:
    """`outside`: 0 nothing binds, 1 right of a minus or inside a product's left, 2 right of a division or product."""
    blank = rng.choice(("", " ", " ", "\n", "\u00a0"))
    if isinstance(tree, int):
        text, binding = str(tree), 3
    else:
        op, left, right = tree
        low = op in "+-"
        binding = 1 if low else 2
        left_text = _render(left, notation, rng, 1 if low else 2)
        right_text = _render(right, notation, rng, 2 if op == "-" else 1 if low else 3)
        text = f"{left_text}{blank}{NOTATIONS[notation][op]}{blank}{right_text}"
    if binding < outside or rng.random() < 0.1:
        opening, closing = rng.choice(_BRACKETS[notation])
        text = f"{opening}{text}{closing}"
    return text
