"""The generator: what it draws is solvable, even, disjoint by bucket, and the same for the same seed."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from itertools import combinations_with_replacement, islice, permutations, product

import numpy as np
import pytest
from scipy import stats

from recipes.errors import RecipeError
from recipes.tasks.countdown.data import PRESETS, SHARES, Settings, bucket, draw, generate, ground_truth, prompt
from recipes.tasks.countdown.solver import solve

PAPER = PRESETS["paper"]
EVERYWHERE = tuple(SHARES)
PINNED = {(1, 2, 3): "train", (1, 2, 4): "pretrain", (1, 1, 1): "pretrain", (1, 1, 4): "test", (1, 1, 3, 8): "test"}


def test_problems_are_in_range_solved_and_different():
    problems = list(islice(generate(PAPER, ("train",), seed=3), 1500))
    assert len({(tuple(sorted(p.numbers)), p.target) for p in problems}) == 1500
    sizes = Counter(len(p.numbers) for p in problems)
    assert set(sizes) == {3, 4}
    assert stats.binomtest(sizes[3], 1500).pvalue > 1e-4
    for problem in problems:
        assert all(1 <= number <= 99 for number in problem.numbers)
        assert 1 <= problem.target <= 99
        assert bucket(problem.numbers) == "train"
    for size in sizes:
        some = [p for p in problems if len(p.numbers) == size]
        solved = solve(np.array([p.numbers for p in some]), np.array([p.target for p in some]))
        assert solved.counts.tolist() == [p.num_solutions for p in some]
        assert solved.solutions == [p.solution for p in some]


def test_same_seed_same_stream_and_longer_draws_start_alike():
    first = list(islice(generate(PAPER, ("train",), seed=0), 300))
    assert first == list(islice(generate(replace(PAPER, train_size=9), ("train",), seed=0), 400))[:300]
    assert first != list(islice(generate(PAPER, ("train",), seed=1), 300))
    assert not set(first) & set(islice(generate(PAPER, ("test",), seed=0), 300))


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


def test_exhausted_settings_are_an_error_after_every_problem_came():
    settings = Settings(sizes=(2,), max_number=4, max_target=8)
    stream = generate(settings, EVERYWHERE, seed=0)
    found = set()
    with pytest.raises(RecipeError, match="no further problem of 2 numbers") as error:
        found.update((tuple(sorted(problem.numbers)), problem.target) for problem in stream)
    expected = {
        (numbers, int(target))
        for numbers in combinations_with_replacement(range(1, 5), 2)
        for target in reachable(numbers)
        if target.denominator == 1 and 1 <= target <= 8
    }
    assert found == expected
    assert "fewer problems" in str(error.value)


def test_buckets_are_a_fixed_partition():
    multisets = list(combinations_with_replacement(range(1, 40), 3))
    shares = Counter(bucket(numbers) for numbers in multisets)
    for name, share in SHARES.items():
        assert shares[name] / len(multisets) == pytest.approx(share / 100, abs=0.02)
    assert bucket((7, 3, 5)) == bucket([5, 7, 3]) == bucket(np.array([3, 5, 7]))
    # Pinned: the tiny model that is shipped was trained on some of these and must not have seen the others.
    assert {numbers: bucket(numbers) for numbers in PINNED} == PINNED


@pytest.mark.parametrize(
    "wrong",
    [
        {"min_number": 0},
        {"min_number": 9, "max_number": 8},
        {"max_target": 0},
        {"sizes": ()},
        {"sizes": (3, 3)},
        {"sizes": (7,)},
        {"train_size": 0},
        {"train_buckets": ("test",)},
        {"test_buckets": ("other",)},
        {"max_number": 10**5},
    ],
)
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(RecipeError):
        Settings(**wrong)


def test_ground_truth_is_json_and_the_prompt_names_everything():
    assert json.loads(ground_truth([3, 8, 1, 1], 24)) == {"target": 24, "numbers": [3, 8, 1, 1]}
    assert ground_truth((3, 8), 24) == json.dumps({"target": 24, "numbers": [3, 8]})
    text = prompt([44, 19, 35], 98)
    assert "98" in text
    assert "44, 19, 35" in text
    assert text.count("<think>") == text.count("</think>") == 1
    assert "<answer>" in text
