"""Problems of the hub's `Jiayi-Pan/Countdown-Tasks-3to4`, or of a parquet file with its columns `nums` and `target`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from recipes.errors import RecipeError
from recipes.tasks.countdown.buckets import bucket
from recipes.tasks.countdown.generate import Problem
from recipes.tasks.countdown.settings import Settings
from recipes.tasks.countdown.solver import solve
from recipes.tasks.hub import load_hub_table
from recipes.tasks.rows import sha256

if TYPE_CHECKING:
    import pyarrow as pa

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
        self.dropped = Counter(other_size=0, out_of_range=0, unsolvable=0, duplicate=0)
        seen: set[tuple[tuple[int, ...], int]] = set()
        order = np.random.default_rng(self._seed).permutation(len(self._table))
        for start in range(0, len(order), BATCH):
            part = self._table.take(order[start : start + BATCH])
            drawn = [
                (tuple(numbers), target)
                for numbers, target in zip(part["nums"].to_pylist(), part["target"].to_pylist(), strict=True)
                if bucket(numbers) in buckets and self._fits(numbers, target)
            ]
            yield from self._solved(drawn, seen)

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

    def _solved(self, drawn: list[tuple[tuple[int, ...], int]], seen: set) -> Iterator[Problem]:
        found: dict[int, tuple[int, str]] = {}
        for size in self._settings.sizes:
            places = [place for place, (numbers, _) in enumerate(drawn) if len(numbers) == size]
            if places:
                numbers, targets = zip(*(drawn[place] for place in places), strict=True)
                solved = solve(np.array(numbers), np.array(targets))
                found.update(zip(places, zip(solved.counts.tolist(), solved.solutions, strict=True), strict=True))
        for place, (numbers, target) in enumerate(drawn):
            key = tuple(sorted(numbers)), target
            if key in seen:
                self.dropped["duplicate"] += 1
            elif not found[place][0]:
                self.dropped["unsolvable"] += 1
            else:
                seen.add(key)
                yield Problem(numbers, target, found[place][1], found[place][0])
