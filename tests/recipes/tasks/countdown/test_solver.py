"""The solver against brute force: every binary tree over every order of the numbers, in fractions."""

from __future__ import annotations

import re
from fractions import Fraction
from functools import cache
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipes.errors import RecipeError
from recipes.tasks.countdown.solver import check_exact, count, solve, template, tree

PRIME = (1 << 61) - 1
VARIABLES = (123456789123, 987654321987, 555555555333, 777777777111)


def trees(items):
    """Every binary tree whose leaves are `items` in this order."""
    if len(items) == 1:
        yield items[0]
    for cut in range(1, len(items)):
        for left in trees(items[:cut]):
            for right in trees(items[cut:]):
                yield from ((operator, left, right) for operator in "+-*/")


def value(shape, numbers):
    """The value of a tree of positions, None where something is divided by zero."""
    if isinstance(shape, int):
        return Fraction(numbers[shape])
    left, right = value(shape[1], numbers), value(shape[2], numbers)
    if left is None or right is None or (shape[0] == "/" and right == 0):
        return None
    return {"+": left.__add__, "-": left.__sub__, "*": left.__mul__, "/": left.__truediv__}[shape[0]](right)


def identity(shape, variables):
    """The tree as a rational function, evaluated at one fixed random point modulo a prime."""
    if isinstance(shape, int):
        return variables[shape]
    left, right = identity(shape[1], variables), identity(shape[2], variables)
    if shape[0] == "/":
        right = pow(right, -1, PRIME)
    return {"+": left + right, "-": left - right}.get(shape[0], left * right) % PRIME


@cache
def all_trees(size):
    """Rational functions of `size` variables, by identity, with one tree each."""
    return {identity(shape, VARIABLES): shape for order in permutations(range(size)) for shape in trees(order)}


def count_solutions(numbers, target):
    """Different solutions: rational functions that hit the target, those that differ by equal numbers counted once."""
    exchanges = [order for order in permutations(range(len(numbers))) if [numbers[p] for p in order] == list(numbers)]
    hits = [shape for shape in all_trees(len(numbers)).values() if value(shape, numbers) == target]
    classes = {min(identity(shape, [VARIABLES[p] for p in order]) for order in exchanges) for shape in hits}
    return len(classes), len(hits)


def evaluated(text):
    """Value and sorted numbers of a solution; Python's own parser is a second opinion on the parentheses."""
    assert re.fullmatch(r"[\d+\-*/() ]+", text)
    return eval(re.sub(r"(\d+)", r"Fraction(\1)", text)), sorted(map(int, re.findall(r"\d+", text)))


@pytest.mark.parametrize(("size", "functions"), [(2, 6), (3, 68), (4, 1170)])
def test_the_catalogue_is_the_rational_functions_and_prints_them(size, functions):
    numbers = (7, 11, 13, 17)[:size]
    shapes = [tree(size, row, range(size)) for row in range(count(size))]
    assert len(shapes) == functions
    assert {identity(shape, VARIABLES) for shape in shapes} == all_trees(size).keys()
    for shape in shapes:
        assert evaluated(template(shape).format(*numbers)) == (value(shape, numbers), list(numbers))


@settings(max_examples=40, deadline=None)
@given(st.data(), st.integers(2, 4), st.integers(3, 99))
def test_solutions_equal_brute_force(data, size, top):
    numbers = data.draw(st.lists(st.integers(1, top), min_size=size, max_size=size))
    reachable = [value(shape, numbers) for shape in all_trees(size).values()]
    whole = sorted({int(v) for v in reachable if v is not None and v.denominator == 1 and 1 <= v <= 99})
    target = data.draw(st.sampled_from(whole) if whole else st.integers(1, 99))
    solved = solve(np.array([numbers]), np.array([target]))
    assert (solved.counts[0], solved.placed[0]) == count_solutions(numbers, target)
    assert solved.solutions[0] == "" or evaluated(solved.solutions[0]) == (target, sorted(numbers))
    assert bool(solved.solutions[0]) == (solved.counts[0] > 0)


def test_exactness_is_guarded():
    check_exact(4, 99, 99)
    for size, number, target in ((6, 9, 9), (1, 9, 9), (4, 100_000, 99), (5, 999, 999)):
        with pytest.raises(RecipeError):
            check_exact(size, number, target)
    for numbers, target in (([0, 2, 3], 5), ([1, 2, 3], 0)):
        with pytest.raises(RecipeError, match="1 or more"):
            solve(np.array([numbers]), np.array([target]))
