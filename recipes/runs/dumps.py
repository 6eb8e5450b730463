"""Dumps of responses, read in one way; `recipes.engines.dump_fields` tells what a line holds."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from recipes.engines.dump_fields import DATA_SOURCE, ROW_ID
from recipes.engines.reward_contract import is_right, stated_accuracy
from recipes.errors import RecipeError

NEEDED = ("input", "output", "gts", "score")
NO_IDS = "no ids of rows: an earlier version wrote it, or its data have none, so nothing can be paired"


@dataclass(frozen=True, slots=True)
class Response:
    """One response.

    Attributes:
        row_id: the id of its row; None where the dump has none.
        group: the same for the responses to one prompt of one batch.
        prompt, text, truth: what was asked and answered, and the ground truth.
        score: what training sees.
        accuracy: what the reward states, in [0, 1]; None where it states none.
        data_source: None where the dump does not say it.
        line: every field as it was written.
    """

    row_id: str | None
    group: str
    prompt: str
    text: str
    truth: str
    score: float
    accuracy: float | None
    data_source: str | None
    line: Mapping[str, Any]

    @property
    def value(self) -> float:
        """What the response is measured by: its accuracy, or the score of a reward that states none."""
        return self.score if self.accuracy is None else self.accuracy

    @property
    def right(self) -> bool | None:
        """Whether the response is right; None where the reward states no accuracy."""
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

    @property
    def measure(self) -> str:
        """What its responses are measured by: "accuracy", or "score" where the reward states no accuracy."""
        return "score" if any(response.accuracy is None for response in self.responses) else "accuracy"

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
    lines = file.read_bytes().split(b"\n")
    numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    responses, torn = [], False
    for number, line in numbered:
        where = f"{file}, line {number}"
        try:
            record = json.loads(line)
        except ValueError as error:
            if number == numbered[-1][0]:
                torn = True
                break
            raise RecipeError("the line is not JSON", where=where, fix="name a dump that the trainer wrote") from error
        responses.append(_response(record, where))
    if not responses:
        raise RecipeError("the dump is empty", where=str(file), fix="wait until it is written, or remove the file")
    return Dump(file, tuple(responses), torn)


def _response(record: Any, where: str) -> Response:
    fix = "name a dump that the trainer wrote"
    if not isinstance(record, dict):
        raise RecipeError("the line is no response", where=where, fix=fix)
    missing = [name for name in NEEDED if name not in record]
    if missing:
        raise RecipeError(f"the record has no {missing[0]}", where=where, fix=fix)
    score, row_id, uid = record["score"], record.get(ROW_ID), record.get("uid")
    if not isinstance(score, int | float) or not math.isfinite(score):
        raise RecipeError(f"the logged score is {score}", where=where, fix="mend the reward: scores are finite numbers")
    group = str(uid).rsplit("_", 2)[0] if uid else row_id
    if group is None:
        raise RecipeError(f"the record has neither uid nor {ROW_ID}, so its group is not known", where=where, fix=fix)
    try:
        accuracy = stated_accuracy(record)
    except ValueError as error:
        raise RecipeError(f"the response's {error}", where=where, fix=fix) from error
    source = record.get(DATA_SOURCE)
    prompt, text, truth = (str(record[name]) for name in ("input", "output", "gts"))
    return Response(row_id, str(group), prompt, text, truth, float(score), accuracy, source, record)
