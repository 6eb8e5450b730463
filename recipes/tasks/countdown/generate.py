"""Endless, seeded stream of solvable Countdown problems, no problem twice."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from recipes.errors import RecipeError
from recipes.tasks.countdown.buckets import SHARES, bucket
from recipes.tasks.countdown.expressions import count
from recipes.tasks.countdown.settings import Settings
from recipes.tasks.countdown.solver import count_placed, evaluate, solve

# Numbers that each expression of a size gets in one sweep over all of them: some thousand problems come out.
DRAWS = {2: 2048, 3: 512, 4: 224, 5: 16}
# Sweeps in a row without one new problem after which the settings count as exhausted.
PATIENCE = 16


class Problem(NamedTuple):
    """`numbers` in the order shown to the model; `solution` is the plainest of `num_solutions` different ones."""

    numbers: tuple[int, ...]
    target: int
    solution: str
    num_solutions: int


def generate(settings: Settings, buckets: Sequence[str], *, seed: int) -> Iterator[Problem]:
    """Problems drawn evenly from all solvable (numbers, target) of each size, sizes in equal shares.

    The same as drawing numbers and target at random until they have a solution, and many times as fast: every
    expression gets numbers at random, values that are whole and in range become targets, and a problem that k
    expressions lead to is kept with probability 1/k. The stream depends on the ranges, sizes, buckets and seed alone: a
    longer draw starts with the shorter one.

    Args:
        buckets: only multisets of numbers from these buckets (see `buckets.py`).
        seed: any non-negative integer.

    Raises:
        RecipeError: the settings hold no further problem, or so few that they are not found.
    """
    stream = sum(1 << place for place, name in enumerate(SHARES) if name in buckets)
    rng = np.random.default_rng([seed, stream])
    seen: set[tuple[tuple[int, ...], int]] = set()
    ready: dict[int, deque[Problem]] = {size: deque() for size in settings.sizes}
    while True:
        for size in rng.choice(settings.sizes, 4096).tolist():
            if not ready[size]:
                ready[size].extend(_refill(settings, size, buckets, rng, seen))
            yield ready[size].popleft()


def _refill(
    settings: Settings, size: int, buckets: Sequence[str], rng: np.random.Generator, seen: set
) -> list[Problem]:
    for _ in range(PATIENCE):
        found = []
        for problem in draw(settings, size, buckets, rng):
            key = tuple(sorted(problem.numbers)), problem.target
            if key not in seen:
                seen.add(key)
                found.append(problem)
        if found:
            return found
    raise RecipeError(
        f"no further problem of {size} numbers from {settings.min_number} to {settings.max_number} with a target from "
        f"{settings.min_target} to {settings.max_target} after {len(seen)} different ones",
        where=f"buckets {', '.join(buckets)}",
        fix="ask for fewer problems or widen the ranges",
    )


def draw(settings: Settings, size: int, buckets: Sequence[str], rng: np.random.Generator) -> Iterator[Problem]:
    """Some thousand problems of one size, each independent of whether it came before."""
    numbers, targets = _sweep(settings, size, rng)
    inside = np.array([bucket(values) in buckets for values in numbers.tolist()], dtype=bool)
    numbers, targets = numbers[inside], targets[inside]
    solved = solve(numbers, targets)
    kept = rng.random(len(targets)) * _leading_expressions(numbers, targets, solved.counts) < 1
    for place in np.flatnonzero(kept).tolist():
        values, target = tuple(numbers[place].tolist()), int(targets[place])
        yield Problem(values, target, solved.solutions[place], int(solved.counts[place]))


def _sweep(settings: Settings, size: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Numbers (hits, size) and targets (hits,) of the draws whose expression came out whole and in range, shuffled."""
    rows = count(size)
    drawn = rng.integers(settings.min_number, settings.max_number, (rows, size, DRAWS[size]), endpoint=True)
    kept, targets = [], []
    for row in range(rows):
        values = evaluate(size, row, drawn[row].astype(np.float64))
        hits = (values >= settings.min_target) & (values <= settings.max_target) & (values == np.rint(values))
        kept.append(drawn[row][:, hits].T)
        targets.append(values[hits])
    order = rng.permutation(sum(map(len, targets)))
    return np.concatenate(kept)[order], np.concatenate(targets).astype(np.int64)[order]


def _leading_expressions(numbers: np.ndarray, targets: np.ndarray, solutions: np.ndarray) -> np.ndarray:
    """(batch,) expressions of the sweep that lead to each problem; the sweep tells equal numbers apart."""
    leading = solutions.copy()
    ordered = np.sort(numbers, axis=1)
    repeated = np.flatnonzero((np.diff(ordered, axis=1) == 0).any(axis=1))
    leading[repeated] = count_placed(numbers[repeated], targets[repeated])
    return leading
