"""Preparing the data of a task: gold-checked rows, all files or none, and the closing table."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from recipes.config import Recipe, path_keys
from recipes.data.manifests import Origin, SplitCounts
from recipes.data.rewards import gold_checked, load_reward
from recipes.data.rows import Row, Written, put_in_place, stage_split, staging
from recipes.errors import RecipeError, counted
from recipes.paths import ROOT
from recipes.progress_bar import progress_bar, tracked
from recipes.provenance import command_line


def make_missing(recipe: Recipe, log: Callable[[str], None]) -> None:
    """Run the recipe's `prepare` command if data files that the recipe itself names are missing.

    Args:
        log: takes the line that says what is run.

    Raises:
        RecipeError: the command failed.
    """
    files = [key for key in path_keys(recipe) if key.kind == "data" and not key.on_hub and not key.source.by_user]
    if not recipe.prepare or all(Path(key.path).exists() for key in files):
        return
    make(recipe, log)


def make(recipe: Recipe, log: Callable[[str], None], *options: str) -> None:
    """Run the recipe's `prepare` command, with `options` at its end. Raises RecipeError where it failed."""
    command = [*recipe.prepare, *options]
    log(f"making the data: python {' '.join(command)}")
    code = subprocess.run([sys.executable, *command], cwd=ROOT, check=False).returncode
    if code:
        raise RecipeError(
            f"the data could not be made (exit code {code}; its message is above)",
            where=f"prepare, from {recipe.source_of('prepare')}",
            fix=f"mend it, then: python {' '.join(command)}",
        )


@dataclass
class Split:
    """One split to write."""

    name: str  # "train" or "test"
    rows: Iterable[Row]  # from `make_row`, made while they are written
    size: int | None  # how many there will be, for the progress bar; None where that is not known
    origin: Origin  # where the rows come from; `prepare` adds task, split and command
    counts: Callable[[], SplitCounts] = SplitCounts  # known once the rows have passed


class Tally:
    """Count the rows of one split after the other, and refuse what two rows may not have in common.

    Attributes:
        tables: rows of the split that passes, by what they are counted by.
    """

    def __init__(
        self,
        what: str,
        key: Callable[[Row], Any],
        values: Callable[[Row], Mapping[str, Any]],
        *,
        once: bool = False,
    ) -> None:
        """Take how rows are told apart and counted.

        Args:
            what: the key's name in a message, such as "the numbers".
            key: what a row may not have in common with rows of another split; None where it has no such thing.
            values: what a row is counted by, table -> value.
            once: no two rows of the same split either.
        """
        self._what, self._key, self._values, self._once = what, key, values, once
        self._split_of: dict[Any, str] = {}
        self.tables: defaultdict[str, Counter[Any]] = defaultdict(Counter)

    def over(self, rows: Iterable[Row], split: str) -> Iterator[Row]:
        """Hand the rows of a split on and count them. Raises RecipeError for a key that is taken."""
        self.tables.clear()
        for index, row in enumerate(rows):
            key = self._key(row)
            if key is not None:
                new = key not in self._split_of
                other = self._split_of.setdefault(key, split)
                if other != split or (self._once and not new):
                    raise RecipeError(
                        f"{split} row {index} repeats {self._what} of a row of {other}: {str(key)[:80]!r}",
                        where="the data's source",
                        fix="remove one of the two",
                    )
            for name, value in self._values(row).items():
                self.tables[name][value] += 1
            yield row

    def keys(self, split: str) -> int:
        """Return the number of different keys of a split."""
        return list(self._split_of.values()).count(split)

    def counts(self, dropped: Mapping[str, int] | None = None, **more: int) -> SplitCounts:
        """Return the tables, sorted, with further numbers and what was left out, for the manifest."""
        tables = {name: {str(value): table[value] for value in sorted(table)} for name, table in self.tables.items()}
        return SplitCounts(counts={**tables, **more}, dropped=dict(dropped or {}))


def prepare(
    task: str,
    splits: Iterable[Split],
    folder: Path,
    *,
    reward: str,
    force: bool = False,
) -> list[Written]:
    """Write `<name>.parquet` and its manifest for each split into `folder`, all or none, and print what was written.

    Args:
        reward: file of the reward under which every row's `extra_info.solution` must earn 1.0.
        force: replace files that hold other data.

    Returns:
        The manifests, and what happened to each file.

    Raises:
        RecipeError: a solution that does not score 1.0; files with other data, without `force`.
    """
    begin, command = time.perf_counter(), command_line()
    score = load_reward(f"{reward}:compute_score").compute_score
    with staging() as staged, progress_bar() as progress:
        for split in splits:
            rows = tracked(gold_checked(split.rows, score), progress, split.name, split.size)
            origin = replace(split.origin, task=task, split=split.name, command=command)
            staged.append(stage_split(folder / f"{split.name}.parquet", rows, origin, split.counts))
        written = put_in_place(staged, force=force)
    print_splits(folder, written, time.perf_counter() - begin)
    return written


def print_splits(folder: Path, splits: Sequence[Written], seconds: float) -> None:
    """The closing table: rows, what happened to the file, its hash, and how fast it was made."""
    from rich.console import Console
    from rich.table import Table

    rows = sum(manifest.rows for manifest, _ in splits)
    table = Table(title=f"{folder}: {counted(rows, 'row')} in {seconds:.1f} s, {rows / seconds:,.0f} a second")
    for column in ("file", "rows", "dropped", "status", "SHA-256"):
        table.add_column(column, justify="right" if column in ("rows", "dropped") else "left")
    for manifest, status in splits:
        dropped = ", ".join(f"{name} {count:,}" for name, count in manifest.dropped.items() if count)
        table.add_row(manifest.file, f"{manifest.rows:,}", dropped or "-", status, manifest.sha256[:16])
    Console().print(table)
