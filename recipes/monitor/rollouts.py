"""Counts of a step's training responses that verl's metrics do not have: zero-variance groups, and right answers."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from recipes.data.rewards import is_right

_EQUAL = 1e-6


@dataclass(frozen=True)
class Groups:
    """The groups of one step.

    Attributes:
        groups: how many there are.
        zero_variance: those whose responses all have the same score: every advantage is zero.
        all_right: zero-variance groups in which every response is right.
        accuracy: share of right responses.
    """

    groups: int
    zero_variance: int
    all_right: int
    accuracy: float

    @property
    def zero_variance_share(self) -> float:
        return self.zero_variance / self.groups


def groups(file: Path) -> Groups | None:
    """Measure one file of verl's rollouts; None where it is not there, still being written, or no such file.

    verl names a response `<uid of the prompt>_<session>_<index>`; without it, prompt and truth name the group.
    """
    members: dict[object, list[tuple[float, bool]]] = defaultdict(list)
    try:
        with file.open(encoding="utf-8") as lines:
            for line in lines:
                entry = json.loads(line)
                uid = entry.get("uid")
                name = uid.rsplit("_", 2)[0] if uid else (entry["input"], str(entry.get("gts")))
                members[name].append((float(entry["score"]), is_right(entry)))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    if not members:
        return None
    zero_variance = [group for group in members.values() if _spread(score for score, _ in group) < _EQUAL]
    right = [is_one_right for group in members.values() for _, is_one_right in group]
    all_right = sum(all(is_one_right for _, is_one_right in group) for group in zero_variance)
    return Groups(len(members), len(zero_variance), all_right, sum(right) / len(right))


def _spread(values: Iterable[float]) -> float:
    scores = list(values)
    return max(scores) - min(scores)


class Rollouts:
    """The groups of a run's steps; each file is read once."""

    MOST = 120
    """Files read for a long run: those of its end, and others evenly spread. A file may have tens of megabytes."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._known: dict[int, Groups] = {}

    def of(self, steps: list[int]) -> dict[int, Groups]:
        """The groups of these steps, where they were written."""
        if self._folder is None:
            return {}
        wanted = steps[-self.MOST // 2 :] + steps[: -self.MOST // 2 : max(1, 2 * len(steps) // self.MOST)]
        for step in wanted:
            if step not in self._known and (found := groups(self._folder / f"{step}.jsonl")):
                self._known[step] = found
        return {step: self._known[step] for step in steps if step in self._known}
