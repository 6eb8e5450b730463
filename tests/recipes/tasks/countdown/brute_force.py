"""Slow and simple: every binary tree over every order of the numbers, in fractions. Shares no code with the solver."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import permutations

PRIME = (1 << 61) - 1
VARIABLES = (123456789123, 987654321987, 555555555333, 777777777111, 314159265358)


def trees(items: Sequence[int]) -> Iterator[tuple | int]:
    """Every binary tree whose leaves are `items` in this order."""
    if len(items) == 1:
        yield items[0]
    for cut in range(1, len(items)):
        for left in trees(items[:cut]):
            for right in trees(items[cut:]):
                for operator in "+-*/":
                    yield operator, left, right


def value(tree: tuple | int, numbers: Sequence[int]) -> Fraction | None:
    """The value of a tree of positions, None where something is divided by zero."""
    if isinstance(tree, int):
        return Fraction(numbers[tree])
    left, right = value(tree[1], numbers), value(tree[2], numbers)
    if left is None or right is None or (tree[0] == "/" and right == 0):
        return None
    return {"+": left.__add__, "-": left.__sub__, "*": left.__mul__, "/": left.__truediv__}[tree[0]](right)


def identity(tree: tuple | int, variables: Sequence[int]) -> int:
    """The tree as a rational function, evaluated at one fixed random point modulo a prime."""
    if isinstance(tree, int):
        return variables[tree]
    left, right = identity(tree[1], variables), identity(tree[2], variables)
    if tree[0] == "/":
        right = pow(right, -1, PRIME)
    return {"+": left + right, "-": left - right}.get(tree[0], left * right) % PRIME


def all_trees(size: int) -> list[tuple | int]:
    """One tree for each rational function of `size` variables."""
    found = {}
    for order in permutations(range(size)):
        for tree in trees(order):
            found.setdefault(identity(tree, VARIABLES), tree)
    return list(found.values())


def count_solutions(numbers: Sequence[int], target: int, candidates: list[tuple | int]) -> int:
    """Different solutions: rational functions that hit the target, those that differ by equal numbers counted once."""
    exchanges = [order for order in permutations(range(len(numbers))) if [numbers[p] for p in order] == list(numbers)]
    found = set()
    for tree in candidates:
        if value(tree, numbers) == target:
            found.add(min(identity(tree, [VARIABLES[p] for p in order]) for order in exchanges))
    return len(found)
