"""Training responses by step: accuracy, by data source, and groups without variance."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import NamedTuple

from recipes.config.schema.recipe import Trainer
from recipes.errors import RecipeError
from recipes.runs.dumps import Dump, read_dump

SAME = 1e-6
"""Scores that differ by less are equal: sums such as 0.1 + 0.2 + 0.7 differ in their last bits, in float32 by 1e-7."""


def is_flat(scores: Iterable[float]) -> bool:
    """Return whether a group has zero variance: all its scores are equal, so that every advantage is zero."""
    values = list(scores)
    return max(values) - min(values) < SAME


@dataclass(frozen=True)
class Groups:
    """The responses of one step.

    Attributes:
        groups: how many groups there are.
        zero_variance: those whose responses all have the same score: every advantage is zero.
        all_right: zero-variance groups in which every response is right.
        accuracy: mean over the responses of what `measure` says.
        by_source: the same for each data source, where there are several.
        measure: "accuracy", or "score" where the reward states no accuracy.
    """

    groups: int
    zero_variance: int
    all_right: int
    accuracy: float
    by_source: Mapping[str, float] = field(default_factory=dict)
    error: float = 0.0
    """Standard error of the accuracy, over the groups."""
    measure: str = "accuracy"

    @property
    def zero_variance_share(self) -> float:
        return self.zero_variance / self.groups


class Rollouts:
    """The responses of a run's steps; each file is read once.

    Args:
        folder: has a file `<step>.jsonl` for each step; None where the run writes none.
        since: seconds since the epoch; an older file is an earlier attempt's, of a step that is done again.
    """

    MOST = 120
    """Files read for a long run: those of its end, and others evenly spread. A file may have tens of megabytes."""

    def __init__(self, folder: str | Path | None, since: float = 0.0) -> None:
        self._folder, self._since = Path(folder) if folder else None, since
        self._known: dict[int, Groups] = {}

    def of(self, step: int) -> Groups | None:
        """The responses of one step; None where they are not written (yet)."""
        if step in self._known or self._folder is None:
            return self._known.get(step)
        file = self._folder / f"{step}.jsonl"
        try:
            dump = read_dump(file) if file.is_file() and file.stat().st_mtime >= self._since else None
        except (OSError, RecipeError):
            return None  # still being written, or another program's
        if dump is None or dump.torn:
            return None
        self._known[step] = measured(dump)
        return self._known[step]

    def among(self, steps: Sequence[int]) -> dict[int, Groups]:
        """Those of these steps that were written; of many steps, `MOST`."""
        read = {*steps[-self.MOST // 2 :], *steps[: -self.MOST // 2 : max(1, 2 * len(steps) // self.MOST)]}
        known = {step: self.of(step) for step in steps if step in read or step in self._known}
        return {step: groups for step, groups in known.items() if groups}


class Responses(NamedTuple):
    """The training and the validation responses of a run by step."""

    training: Rollouts
    validation: Rollouts

    @classmethod
    def of(cls, trainer: Trainer, since: float = 0.0) -> Responses:
        """Those in the folders that a recipe names; training responses written since a time, in seconds."""
        return cls(Rollouts(trainer.rollout_data_dir, since), Rollouts(trainer.validation_data_dir))


def measured(dump: Dump) -> Groups:
    """Count the groups and the right responses of a dump."""
    flat = [group for group in dump.groups.values() if is_flat(response.score for response in group)]
    by_source: dict[str, list[float]] = defaultdict(list)
    for response in dump.responses:
        by_source[response.data_source or "unknown"].append(response.value)
    means = {name: fmean(values) for name, values in sorted(by_source.items())}
    return Groups(
        groups=len(dump.groups),
        zero_variance=len(flat),
        all_right=sum(all(response.right for response in group) for group in flat),
        accuracy=fmean(response.value for response in dump.responses),
        by_source=means if len(means) > 1 else {},
        error=_standard_error([fmean(response.value for response in group) for group in dump.groups.values()]),
        measure=dump.measure,
    )


def _standard_error(values: Sequence[float]) -> float:
    """The standard error of a mean; 0 where all values are the same."""
    return stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
