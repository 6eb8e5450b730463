"""The solver against brute force in fractions, and the catalogue against rational functions modulo a prime."""

from __future__ import annotations

import re
from fractions import Fraction
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipes.errors import RecipeError
from recipes.tasks.countdown.solver import all_solutions, canonical, check_exact, count, entries, solve, template, tree

spec = spec_from_file_location("brute_force", Path(__file__).with_name("brute_force.py"))
brute_force = module_from_spec(spec)
spec.loader.exec_module(brute_force)

candidates = cache(brute_force.all_trees)


def evaluated(text: str) -> tuple[Fraction, list[int]]:
    """Value and sorted numbers of a solution; Python's own parser is a second opinion on the parentheses."""
    assert re.fullmatch(r"[\d+\-*/() ]+", text)
    return eval(re.sub(r"(\d+)", r"Fraction(\1)", text)), sorted(map(int, re.findall(r"\d+", text)))


def test_the_catalogue_is_the_rational_functions():
    for size in (2, 3, 4):
        ours = [brute_force.identity(tree(size, row, range(size)), brute_force.VARIABLES) for row in range(count(size))]
        brute = [brute_force.identity(found, brute_force.VARIABLES) for found in candidates(size)]
        assert len(ours) == len(set(ours)) == {2: 6, 3: 68, 4: 1170}[size]
        assert set(ours) == set(brute)


def test_canonical_form_ignores_order_grouping_and_signs():
    same = [
        [("-", 0, ("-", 1, 2)), ("+", 2, ("-", 0, 1)), ("-", ("+", 0, 2), 1)],
        [("/", 0, ("/", 1, 2)), ("*", 2, ("/", 0, 1)), ("/", ("*", 2, 0), 1)],
        [("*", ("-", 0, 1), ("-", 2, 3)), ("*", ("-", 3, 2), ("-", 1, 0))],
        [("-", 0, ("*", 1, ("-", 2, 3))), ("+", 0, ("*", ("-", 3, 2), 1))],
    ]
    forms = [{canonical(shape, range(4)) for shape in group} for group in same]
    assert [len(group) for group in forms] == [1, 1, 1, 1]
    assert len(set.union(*forms)) == 4
    assert canonical(("-", 0, 1), range(2)) != canonical(("-", 1, 0), range(2))
    assert canonical(("+", 0, ("*", ("-", 1, 1), 2)), range(3)) == canonical(("-", 0, ("*", ("-", 1, 1), 2)), range(3))


def test_printed_parentheses_keep_the_value():
    numbers = [Fraction(n) for n in (7, 11, 13, 17)]
    for row in range(len(entries(4))):
        shape = tree(4, row, range(4))
        expected = brute_force.value(shape, numbers)
        value, used = evaluated(template(shape).format(7, 11, 13, 17))
        assert value == expected
        assert used == [7, 11, 13, 17]


@settings(max_examples=40, deadline=None)
@given(st.data(), st.integers(2, 4), st.integers(3, 99))
def test_counts_equal_brute_force(data, size, top):
    numbers = data.draw(st.lists(st.integers(1, top), min_size=size, max_size=size))
    reachable = [brute_force.value(found, numbers) for found in candidates(size)]
    whole = sorted({int(v) for v in reachable if v is not None and v.denominator == 1 and 1 <= v <= 99})
    target = data.draw(st.sampled_from(whole) if whole else st.integers(1, 99))
    expected = brute_force.count_solutions(numbers, target, candidates(size))
    solved = solve(np.array([numbers]), np.array([target]))
    solutions = all_solutions(numbers, target)
    assert solved.counts.tolist() == [expected]
    assert len(set(solutions)) == expected
    assert solved.solutions == [solutions[0] if expected else ""]
    for text in solutions:
        assert evaluated(text) == (target, sorted(numbers))


@pytest.mark.parametrize(
    ("numbers", "target", "number_of_solutions"),
    [
        ([3, 3, 8, 8], 24, 1),  # 8 / (3 - 8 / 3), the classic that needs fractions
        ([1, 5, 5, 5], 24, 1),  # (5 - 1 / 5) * 5
        ([1, 1, 1, 1], 24, 0),
        ([2, 2], 4, 2),  # 2 + 2 and 2 * 2
        ([6, 6, 6, 6], 24, None),
    ],
)
def test_known_problems(numbers, target, number_of_solutions):
    expected = brute_force.count_solutions(numbers, target, candidates(len(numbers)))
    assert number_of_solutions in (None, expected)
    assert solve(np.array([numbers]), np.array([target])).counts.tolist() == [expected]


def test_a_batch_is_its_problems_one_by_one():
    rng = np.random.default_rng(5)
    numbers, targets = rng.integers(1, 9, (3000, 4)), rng.integers(1, 40, 3000)
    together = solve(numbers, targets)
    for row in rng.integers(0, 3000, 60):
        alone = solve(numbers[row : row + 1], targets[row : row + 1])
        assert (alone.counts[0], alone.solutions[0]) == (together.counts[row], together.solutions[row])


def test_five_numbers():
    texts = all_solutions([1, 3, 7, 10, 25], 99)
    assert texts
    assert len(texts) == len(set(texts))
    assert all(evaluated(text) == (99, [1, 3, 7, 10, 25]) for text in texts)


def test_exactness_is_guarded():
    check_exact(4, 99, 99)
    for size, number, target in ((6, 9, 9), (1, 9, 9), (4, 100_000, 99), (5, 999, 999)):
        with pytest.raises(RecipeError):
            check_exact(size, number, target)
    for numbers, target in (([0, 2, 3], 5), ([1, 2, 3], 0)):
        with pytest.raises(RecipeError, match="1 or more"):
            solve(np.array([numbers]), np.array([target]))
