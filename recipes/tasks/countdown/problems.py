"""Countdown's problems: ranges and presets, the generator, and those of the hub's data set."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from recipes.data.hub import load_hub_table
from recipes.data.splits import SHARES, bucket_of
from recipes.errors import RecipeError
from recipes.provenance import sha256
from recipes.tasks.countdown.solver import check_exact, count, evaluate, solve

if TYPE_CHECKING:
    import pyarrow as pa


def bucket(numbers: Sequence[int]) -> str:
    """The bucket of a multiset of numbers: `pretrain`, `train` or `test`. Neither order nor target plays a part."""
    return bucket_of(",".join(map(str, sorted(numbers))))


@dataclass(frozen=True)
class Settings:
    """Problems of a data set; the defaults are those of the hub's `Jiayi-Pan/Countdown-Tasks-3to4`.

    Args:
        sizes: how many numbers a problem has; each size is equally likely. (The hub's set has 490,364 rows of 40.07
            bytes on average, 12 and 8 for each number: 49% of its problems have three numbers, 51% have four.)
        min_number, max_number: range of the numbers, both ends included.
        min_target, max_target: range of the target, both ends included.
        train_size, test_size: problems in each split.
        train_buckets, test_buckets: where the multisets of numbers of each split come from (see `bucket`).
    """

    sizes: tuple[int, ...] = (3, 4)
    min_number: int = 1
    max_number: int = 99
    min_target: int = 1
    max_target: int = 99
    train_size: int = 4096
    test_size: int = 512
    train_buckets: tuple[str, ...] = ("pretrain", "train")
    test_buckets: tuple[str, ...] = ("test",)

    def __post_init__(self) -> None:
        for low, high in (("min_number", "max_number"), ("min_target", "max_target")):
            if not 1 <= getattr(self, low) <= getattr(self, high):
                raise RecipeError(
                    f"{low}={getattr(self, low)} and {high}={getattr(self, high)} are not a range of numbers from 1 up",
                    where=f"{low}, {high}",
                    fix=f"1 <= {low} <= {high}",
                )
        for name in ("train_size", "test_size"):
            if getattr(self, name) < 1:
                raise RecipeError(f"{name}={getattr(self, name)} is not positive", where=name, fix="ask for 1 or more")
        if not self.sizes or len(set(self.sizes)) != len(self.sizes):
            raise RecipeError(f"sizes={self.sizes} is empty or repeats a size", where="sizes", fix="for instance 3,4")
        for size in self.sizes:
            check_exact(size, self.max_number, self.max_target)


PRESETS = {
    "paper": Settings(),
    # The ranges that the tiny model was pretrained on; its pretraining had other multisets of numbers than both splits.
    "tiny": Settings(
        sizes=(3,), max_number=30, max_target=60, train_size=2048, test_size=256, train_buckets=("train",)
    ),
}


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
        buckets: only multisets of numbers from these buckets (see `bucket`).
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
    settings: Settings,
    size: int,
    buckets: Sequence[str],
    rng: np.random.Generator,
    seen: set[tuple[tuple[int, ...], int]],
) -> list[Problem]:
    for _ in range(PATIENCE):
        problems = []
        for problem in draw(settings, size, buckets, rng):
            key = tuple(sorted(problem.numbers)), problem.target
            if key not in seen:
                seen.add(key)
                problems.append(problem)
        if problems:
            return problems
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
    kept = rng.random(len(targets)) * solved.placed < 1  # the sweep tells equal numbers apart
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


REPOSITORY = "Jiayi-Pan/Countdown-Tasks-3to4"
BATCH = 2048


def load_table(path: Path | None, revision: str) -> tuple[pa.Table, str]:
    """The data set from the hub, or from a local parquet file; and its source for the manifest."""
    if path is None:
        table, commit = load_hub_table(REPOSITORY, split="train", revision=revision)
        source = f"{REPOSITORY}@{commit}"
    else:
        table = _read_parquet(path)
        source = f"{path.name}, SHA-256 {sha256(path)}"
    missing = {"nums", "target"} - set(table.column_names)
    if missing:
        raise RecipeError(
            f"the data set has no column {', '.join(sorted(missing))}, only {', '.join(table.column_names)}",
            where=source,
            fix="use a file with nums (a list of numbers) and target (a number)",
        )
    return table, source


def _read_parquet(path: Path) -> pa.Table:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.read_table(path)
    except (OSError, pa.ArrowInvalid) as error:
        fix = "give a copy of the data set's parquet file"
        raise RecipeError(f"{path} cannot be read: {error}", where="--hub_path", fix=fix) from error


class HubProblems:
    """The problems of a table in a seeded random order, each once, solved, and without those that do not fit.

    Attributes:
        dropped: rows of the split read last that were left out: other_size, out_of_range, unsolvable, duplicate.
    """

    def __init__(self, table: pa.Table, settings: Settings, *, seed: int) -> None:
        self._table, self._settings, self._seed = table, settings, seed
        self.dropped: Counter[str] = Counter()

    def split(self, buckets: Sequence[str]) -> Iterator[Problem]:
        """The problems whose numbers are in these buckets."""
        self.dropped.clear()
        self.dropped.update(other_size=0, out_of_range=0, unsolvable=0, duplicate=0)
        seen: set[tuple[tuple[int, ...], int]] = set()
        order = np.random.default_rng(self._seed).permutation(len(self._table))
        for start in range(0, len(order), BATCH):
            part = self._table.take(order[start : start + BATCH]).to_pydict()
            drawn = [
                (tuple(numbers), target)
                for numbers, target in zip(part["nums"], part["target"], strict=True)
                if bucket(numbers) in buckets and self._fits(numbers, target)
            ]
            solved = self._solved(drawn)
            for numbers, target in drawn:
                key = tuple(sorted(numbers)), target
                solution, solutions = solved[numbers, target]
                if key in seen:
                    self.dropped["duplicate"] += 1
                elif not solutions:
                    self.dropped["unsolvable"] += 1
                else:
                    seen.add(key)
                    yield Problem(numbers, target, solution, solutions)

    def _fits(self, numbers: list[int], target: int) -> bool:
        settings = self._settings
        if len(numbers) not in settings.sizes:
            self.dropped["other_size"] += 1
            return False
        inside = settings.min_number <= min(numbers) and max(numbers) <= settings.max_number
        if not (inside and settings.min_target <= target <= settings.max_target):
            self.dropped["out_of_range"] += 1
            return False
        return True

    def _solved(self, drawn: list[tuple[tuple[int, ...], int]]) -> dict[tuple[tuple[int, ...], int], tuple[str, int]]:
        """(numbers, target) -> the plainest solution, and how many there are."""
        answers: dict[tuple[tuple[int, ...], int], tuple[str, int]] = {}
        for size in self._settings.sizes:
            part = [problem for problem in drawn if len(problem[0]) == size]
            if part:
                solved = solve(np.array([numbers for numbers, _ in part]), np.array([target for _, target in part]))
                answers |= dict(zip(part, zip(solved.solutions, solved.counts.tolist(), strict=True), strict=True))
        return answers
