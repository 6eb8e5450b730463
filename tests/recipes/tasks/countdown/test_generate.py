"""The generator: what it draws is solvable, even, disjoint by bucket, and the same for the same seed."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from itertools import islice, permutations, product

import numpy as np
import pytest
from scipy import stats

from recipes.tasks.countdown.problems import PRESETS, SHARES, Settings, bucket, draw, generate
from recipes.tasks.countdown.solver import solve

PAPER = PRESETS["paper"]
EVERYWHERE = tuple(SHARES)
# The tiny model that is shipped was trained on some of these and must not have seen the others.
PINNED = {(1, 2, 3): "train", (1, 2, 4): "pretrain", (1, 1, 1): "pretrain", (1, 1, 4): "test", (1, 1, 3, 8): "test"}


def test_problems_are_in_range_solved_different_and_the_same_for_a_seed():
    problems = list(islice(generate(PAPER, ("train",), seed=3), 1500))
    assert len({(tuple(sorted(p.numbers)), p.target) for p in problems}) == 1500
    assert all(1 <= number <= 99 for p in problems for number in (*p.numbers, p.target))
    assert {bucket(p.numbers) for p in problems} == {"train"}
    for size in (3, 4):
        some = [p for p in problems if len(p.numbers) == size]
        assert stats.binomtest(len(some), 1500).pvalue > 1e-4
        solved = solve(np.array([p.numbers for p in some]), np.array([p.target for p in some]))
        assert solved.counts.tolist() == [p.num_solutions for p in some]
        assert solved.solutions == [p.solution for p in some]
    assert problems[:300] == list(islice(generate(replace(PAPER, train_size=9), ("train",), seed=3), 300))
    assert problems[:300] != list(islice(generate(PAPER, ("train",), seed=1), 300))


def reachable(numbers):
    """Values of every expression over these numbers, in fractions."""
    if len(numbers) == 1:
        return {Fraction(numbers[0])}
    found = set()
    for order in permutations(numbers):
        for cut in range(1, len(order)):
            for a, b in product(reachable(order[:cut]), reachable(order[cut:])):
                found |= {a + b, a - b, a * b} | ({a / b} if b else set())
    return found


@pytest.mark.parametrize(("size", "top"), [(2, 12), (3, 5)])
def test_all_solvable_problems_are_equally_likely(size, top):
    settings = Settings(sizes=(size,), max_number=top, max_target=20)
    problems = {
        (numbers, target)
        for numbers in product(range(1, top + 1), repeat=size)
        for target in reachable(numbers)
        if target.denominator == 1 and 1 <= target <= 20
    }
    rng = np.random.default_rng(11)
    drawn = Counter()
    while drawn.total() < 12 * len(problems):
        drawn.update((p.numbers, p.target) for p in draw(settings, size, EVERYWHERE, rng))
    assert drawn.keys() == problems
    # Draws are spread evenly over expressions, which makes the counts a little more even than a multinomial's.
    assert stats.chisquare(list(drawn.values())).pvalue > 1e-3


def test_buckets_are_a_fixed_partition():
    assert {numbers: bucket(numbers[::-1]) for numbers in PINNED} == PINNED
