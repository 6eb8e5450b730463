"""Endless, seeded stream of solvable Countdown problems, no problem twice."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from recipes.errors import RecipeError
from recipes.tasks.countdown.buckets import SHARES, bucket
from recipes.tasks.countdown.settings import Settings
from recipes.tasks.countdown.solver import solve

BATCH = 8192
# Batches in a row without one new problem after which the settings count as exhausted.
PATIENCE = 64


class Problem(NamedTuple):
    """`numbers` in the order shown to the model; `solution` is the plainest of `num_solutions` different ones."""

    numbers: tuple[int, ...]
    target: int
    solution: str
    num_solutions: int


def generate(settings: Settings, buckets: Sequence[str], *, seed: int) -> Iterator[Problem]:
    """Problems drawn evenly from all solvable (numbers, target) of each size, sizes in equal shares.

    Numbers and target are drawn evenly and independently, and kept if an exact solution exists. The stream depends on
    the settings' ranges and sizes, the buckets and the seed alone: a longer draw starts with the shorter one.

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
        for size in rng.choice(settings.sizes, BATCH).tolist():
            if not ready[size]:
                ready[size].extend(_refill(settings, size, buckets, rng, seen))
            yield ready[size].popleft()


def _refill(
    settings: Settings, size: int, buckets: Sequence[str], rng: np.random.Generator, seen: set
) -> list[Problem]:
    for _ in range(PATIENCE):
        numbers = rng.integers(settings.min_number, settings.max_number, (BATCH, size), endpoint=True)
        targets = rng.integers(settings.min_target, settings.max_target, BATCH, endpoint=True)
        solved = solve(numbers, targets)
        found = []
        for row in np.flatnonzero(solved.counts).tolist():
            drawn, target = tuple(numbers[row].tolist()), int(targets[row])
            key = tuple(sorted(drawn)), target
            if key not in seen and bucket(drawn) in buckets:
                seen.add(key)
                found.append(Problem(drawn, target, solved.solutions[row], int(solved.counts[row])))
        if found:
            return found
    raise RecipeError(
        f"no further problem of {size} numbers from {settings.min_number} to {settings.max_number} with a target from "
        f"{settings.min_target} to {settings.max_target} after {len(seen)} different ones",
        where=f"buckets {', '.join(buckets)}",
        fix="ask for fewer problems or widen the ranges",
    )
