"""Countdown's expressions against brute force, and the problems that are drawn."""

from bisect import bisect
from fractions import Fraction
from itertools import islice, permutations, product

from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats

from recipes.rewards.loading import load_reward
from recipes.tasks.countdown.problems import (
    DATA_SOURCE,
    PRESETS,
    Settings,
    bucket,
    expressions,
    generate,
    gold_response,
    ground_truth,
    solve,
)
from recipes.tasks.prepare import SHARES


def reachable(numbers):
    """Values of every expression over these numbers in this order, in fractions."""
    if len(numbers) == 1:
        return {Fraction(numbers[0])}
    found = set()
    for cut in range(1, len(numbers)):
        for a, b in product(reachable(numbers[:cut]), reachable(numbers[cut:])):
            found |= {a + b, a - b, a * b} | ({a / b} if b else set())
    return found


reward = load_reward("reward_functions/countdown.py")


def score(solution, numbers, target):
    """By the reward, whose arithmetic is exact and whose parser is another one."""
    return reward.compute_score(DATA_SOURCE, gold_response(solution), ground_truth(numbers, target))["score"]


def is_near(value, ordered):
    """Return whether a sorted list has the value up to rounding; two roundings to digits may differ at a half."""
    place = bisect(ordered, value)
    return min(abs(value - each) for each in ordered[max(0, place - 1) : place + 1]) <= 1e-9 * max(1, abs(value))


@settings(max_examples=30, deadline=None)
@example([3, 3, 8, 8])  # 24 needs a fraction
@given(st.integers(1, 4).flatmap(lambda size: st.lists(st.integers(1, 99), min_size=size, max_size=size)))
def test_expressions_reach_what_brute_force_reaches(numbers):
    every = set().union(*(reachable(order) for order in permutations(numbers)))
    found, exact = sorted(expressions(tuple(numbers))), sorted(map(float, every))
    assert all(is_near(value, exact) for value in found)
    assert all(is_near(value, found) for value in exact)
    for target in range(1, 100):
        solution = solve(numbers, target)
        assert (solution is not None) == (target in every)
        assert solution is None or len(numbers) == 1 or score(solution, numbers, target) == 1.0


def test_problems_are_in_range_different_and_the_same_for_a_seed():
    paper = PRESETS["paper"]
    problems = list(islice(generate(paper, ("train",), seed=3), 300))
    assert len({(tuple(sorted(p.numbers)), p.target) for p in problems}) == 300
    assert all(1 <= number <= 99 for p in problems for number in (*p.numbers, p.target))
    assert {bucket(order) for p in problems for order in permutations(p.numbers)} == {"train"}
    assert stats.binomtest(sum(len(p.numbers) == 3 for p in problems), 300).pvalue > 1e-4
    assert {score(p.solution, p.numbers, p.target) for p in problems} == {1.0}
    assert problems[:100] == list(islice(generate(paper, ("train",), seed=3), 100))
    assert problems[:100] != list(islice(generate(paper, ("train",), seed=1), 100))


def test_every_solvable_problem_is_drawn_and_then_the_settings_are_exhausted():
    few = Settings(sizes=(2,), max_number=6, max_target=20)
    pairs = product(range(1, 7), repeat=2)
    solvable = {(tuple(sorted(pair)), target) for pair in pairs for target in range(1, 21) if solve(pair, target)}
    drawn = [(tuple(sorted(p.numbers)), p.target) for p in generate(few, tuple(SHARES), seed=0)]
    assert (set(drawn), len(drawn)) == (solvable, len(solvable))
