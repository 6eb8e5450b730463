"""Responses that a run wrote: the dump of a step's training or validation, and what is counted in it."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

from recipes.config.schema.recipe import Trainer
from recipes.engines.reward_contract import ROW_ID, is_right, stated_accuracy
from recipes.errors import RecipeError

NEEDED = ("input", "output", "gts", "score")
NO_IDS = "its rows have no ids, so nothing can be paired"
SAME = 1e-6
"""Scores that differ by less are equal: sums such as 0.1 + 0.2 + 0.7 differ in their last bits, in float32 by 1e-7."""


@dataclass(frozen=True, slots=True)
class Response:
    """One response.

    Attributes:
        row_id: the id of its row; None where the dump has none.
        group: the same for the responses to one prompt of one batch.
        prompt, text, truth: what was asked and answered, and the ground truth.
        score: what training sees.
        accuracy: what the reward states, in [0, 1]; None where it states none.
    """

    row_id: str | None
    group: str
    prompt: str
    text: str
    truth: str
    score: float
    accuracy: float | None

    @property
    def value(self) -> float:
        """Measured value of the response: its accuracy, or the score of a reward that states none."""
        return self.score if self.accuracy is None else self.accuracy

    @property
    def right(self) -> bool | None:
        """Return whether the response is right; None where the reward states no accuracy."""
        return is_right(self.accuracy)


@dataclass(frozen=True)
class Dump:
    """The responses of one file, in its order.

    Attributes:
        torn: the last line is half written, and left out.
    """

    file: Path
    responses: tuple[Response, ...]
    torn: bool

    @cached_property
    def groups(self) -> dict[str, list[Response]]:
        """The responses by group, in the file's order; lines of a group need not stand together."""
        groups: dict[str, list[Response]] = {}
        for response in self.responses:
            groups.setdefault(response.group, []).append(response)
        return groups

    @cached_property
    def means(self) -> list[float]:
        """The mean of what each group's responses are measured by."""
        return [fmean(response.value for response in group) for group in self.groups.values()]

    @property
    def measure(self) -> str:
        """Measure of its responses: "accuracy", or "score" where the reward states no accuracy."""
        return "score" if any(response.accuracy is None for response in self.responses) else "accuracy"

    @property
    def bounds(self) -> tuple[float, float] | None:
        """The smallest and largest value of a response; None where a score is measured."""
        return (0.0, 1.0) if self.measure == "accuracy" else None

    @cached_property
    def has_ids(self) -> bool:
        """Return whether every response has the id of its row."""
        return all(response.row_id is not None for response in self.responses)

    @cached_property
    def repeated(self) -> set[str]:
        """Ids with more responses than most have: several rows share them, so that they name no question."""
        counts = Counter(response.row_id for response in self.responses if response.row_id is not None)
        usual = Counter(counts.values()).most_common(1)[0][0] if counts else 0
        return {row for row, count in counts.items() if count > usual}

    @cached_property
    def answers(self) -> dict[str, list[Response]]:
        """Id of the row -> its responses; ids that repeat are left out, and without ids there are none."""
        answers: dict[str, list[Response]] = {}
        for response in self.responses if self.has_ids else ():
            if response.row_id is not None and response.row_id not in self.repeated:
                answers.setdefault(response.row_id, []).append(response)
        return answers

    @property
    def notes(self) -> list[str]:
        """Return what a reader of the figures has to know, in sentences."""
        notes = ["the last line is half written and left out"] if self.torn else []
        if not self.has_ids:
            notes.append(NO_IDS)
        if self.repeated:
            some = ", ".join(sorted(self.repeated)[:3])
            notes.append(f"ids of rows repeat and are not paired: {len(self.repeated)} ids, such as {some}")
        return notes


def dump_files(folder: Path) -> dict[int, Path]:
    """Step -> its dump, in order."""
    files = {int(file.stem): file for file in folder.glob("*.jsonl") if file.stem.isdecimal()}
    return dict(sorted(files.items()))


def validation_files(run: Path) -> dict[int, Path]:
    """Step -> the dump of its validation, in order, of a run's folder."""
    return dump_files(run / "validation")


def read_dump(file: Path) -> Dump:
    """Read one dump.

    Raises:
        RecipeError: no response, a line before the last that is not JSON, or one that is no response.
    """
    numbered = [(number, line) for number, line in enumerate(file.read_bytes().split(b"\n"), 1) if line.strip()]
    responses, torn = [], False
    for number, line in numbered:
        try:
            responses.append(_response(json.loads(line)))
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            torn = number == numbered[-1][0]
            if not torn:
                raise _broken(file, number, "the line is not JSON") from error
        except (KeyError, TypeError, ValueError) as error:
            what = f"the response has no {error}" if isinstance(error, KeyError) else f"the response: {error}"
            raise _broken(file, number, what) from error
    if not responses:
        raise RecipeError("the dump is empty", where=str(file), fix="wait until it is written, or remove the file")
    return Dump(file, tuple(responses), torn)


def _broken(file: Path, number: int, what: str) -> RecipeError:
    return RecipeError(what, where=f"{file}, line {number}", fix="name a dump that the trainer wrote")


def _response(record: dict[str, Any]) -> Response:
    prompt, text, truth, score = (record[name] for name in NEEDED)
    row_id, uid = record.get(ROW_ID), record.get("uid")
    if not isinstance(score, int | float) or not math.isfinite(score):
        raise ValueError(f"its score is {score}, not a finite number")
    group = str(uid).rsplit("_", 2)[0] if uid else row_id
    if group is None:
        raise ValueError(f"it has neither uid nor {ROW_ID}, so its group is not known")
    accuracy = stated_accuracy(record)
    return Response(row_id, str(group), str(prompt), str(text), str(truth), float(score), accuracy)


def is_flat(scores: Iterable[float]) -> bool:
    """Return whether a group has zero variance: all its scores are equal, so that every advantage is zero."""
    values = list(scores)
    return max(values) - min(values) < SAME


@dataclass(frozen=True)
class Groups:
    """The responses of one step, counted.

    Attributes:
        groups: how many groups there are; in a validation, questions.
        zero_variance: those whose responses all have the same score: every advantage is zero.
        all_right: zero-variance groups in which every response is right.
        value: mean over the responses of what `measure` says.
        error: standard error of the mean over the groups; 0 where all have the same mean.
        measure: "accuracy", or "score" where the reward states no accuracy.
    """

    groups: int
    zero_variance: int
    all_right: int
    value: float
    error: float = 0.0
    measure: str = "accuracy"

    @classmethod
    def of(cls, dump: Dump) -> Groups:
        """Count the groups and the right responses of a dump."""
        flat = [group for group in dump.groups.values() if is_flat(response.score for response in group)]
        return cls(
            groups=len(dump.groups),
            zero_variance=len(flat),
            all_right=sum(all(response.right for response in group) for group in flat),
            value=fmean(response.value for response in dump.responses),
            error=stdev(dump.means) / len(dump.means) ** 0.5 if len(dump.means) > 1 else 0.0,
            measure=dump.measure,
        )


class Rollouts:
    """The responses of a run's steps, counted; each file is read once.

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
        self._known[step] = Groups.of(dump)
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
