"""Reads the dumps of responses that a run writes in training and validation, and measures a validation."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple, TypeVar

from recipes.config import Recipe
from recipes.data.rows import first_id
from recipes.dumps import ENDED, ROW_ID, TURNS, as_text
from recipes.errors import RecipeError, counted
from recipes.rewards.contract import is_right, stated_accuracy
from recipes.runs.metrics import Step, validation
from recipes.statistics import standard_error

NEEDED = ("input", "output", "gts", "score")
NO_IDS = "its rows have no ids, so nothing can be paired"


@dataclass(frozen=True, slots=True)
class Response:
    """One response."""

    row_id: str | None  # the id of the prompt's row in the data; None where the dump has no id for it
    group: str  # a key that the responses to one prompt of a batch share
    prompt: str  # what was asked
    text: str  # what was answered
    truth: str  # the ground truth
    question: tuple[str, ...]  # what responses to the same question share, also those of different rows
    score: float  # what training uses
    accuracy: float | None  # what the reward states, in [0, 1]; None where it states none

    @property
    def value(self) -> float:
        """The accuracy, or the score of a reward that states none."""
        return self.score if self.accuracy is None else self.accuracy

    @property
    def right(self) -> bool | None:
        """Return whether the response is right; None where the reward states no accuracy."""
        return is_right(self.accuracy)


@dataclass(frozen=True)
class Dump:
    """The responses of one file, in its order."""

    file: Path
    responses: tuple[Response, ...]

    @cached_property
    def groups(self) -> dict[str, list[Response]]:
        """The responses by group, in the file's order; a group's lines need not be adjacent."""
        groups: dict[str, list[Response]] = {}
        for response in self.responses:
            groups.setdefault(response.group, []).append(response)
        return groups

    @cached_property
    def means(self) -> list[float]:
        """Mean accuracy or score of each group."""
        return [fmean(response.value for response in group) for group in self.groups.values()]

    @cached_property
    def clusters(self) -> list[tuple[str, ...]]:
        """The question of each group: rows with the same question are not independent."""
        return [group[0].question for group in self.groups.values()]

    @property
    def measure(self) -> str:
        """ "accuracy", or "score" where the reward states no accuracy."""
        return "score" if any(response.accuracy is None for response in self.responses) else "accuracy"

    @property
    def bounds(self) -> tuple[float, float] | None:
        """The smallest and largest value that a response can have; None where the measure is the score."""
        return (0.0, 1.0) if self.measure == "accuracy" else None

    @cached_property
    def answers(self) -> dict[str, list[Response]]:
        """Id of the row -> its responses; responses without one are left out."""
        answers: dict[str, list[Response]] = {}
        for response in self.responses:
            if response.row_id is not None:
                answers.setdefault(response.row_id, []).append(response)
        return answers


def validation_files(run: Path, recipe: Recipe | None) -> dict[int, Path]:
    """Step -> its validation dump, in order."""
    folder = dump_folder(run, recipe, "validation")
    files = {int(file.stem): file for file in folder.glob("*.jsonl") if file.stem.isdecimal()}
    return dict(sorted(files.items()))


DUMPS = ("rollouts", "validation")
"""The kinds of dumps, and their folders in a run's."""


def dump_folder(run: Path, recipe: Recipe | None, kind: str) -> Path:
    """The folder of a run's dumps: its own, which moves and is copied with it, or the one that its recipe names."""
    trainer = recipe.trainer if recipe else None
    named = trainer and (trainer.validation_data_dir if kind == "validation" else trainer.rollout_data_dir)
    is_own = not trainer or not named or Path(named).parts[-2:] == (trainer.experiment_name, kind)
    return run / kind if is_own else Path(str(named))


def read_validations(
    run: Path, recipe: Recipe | None, since: int = 0, most: int | None = None
) -> tuple[dict[int, Dump], list[str]]:
    """The validations that compare with the last one, by step, and a note on each other one.

    Args:
        since: the first step with the present reward and questions (`folder.compares_since`).
        most: at most so many are read, evenly spaced; None reads all.
    """
    files = validation_files(run, recipe)
    dumps: dict[int, Dump] = {}
    notes = []
    if earlier := [step for step in files if step < since]:
        what = f"{counted(len(earlier), 'validation')}, the last of step {earlier[-1]}, left out"
        notes.append(f"{what}: the reward or the questions changed after step {since}")
    steps = [step for step in files if step >= since]
    if most and len(steps) > most:
        steps = [steps[round(place * (len(steps) - 1) / (most - 1))] for place in range(most)]
    for step in steps:
        try:
            dumps[step] = read_dump(files[step], images=may_show_images(recipe))
        except RecipeError as error:
            notes.append(f"validation of step {step} left out: {error.what}")
    same = of_last_measure(dumps)
    if others := [str(step) for step in dumps if step not in same]:
        notes.append(f"validations of steps {', '.join(others)} left out: the reward then had another measure")
    return same, notes


def may_show_images(recipe: Recipe | None) -> bool:
    """Return whether the prompts of a run may have images; True where its recipe is not known."""
    return recipe is None or recipe.worker.rollout.limit_images > 0


def read_dump(file: Path, *, images: bool = False) -> Dump:
    """Read one dump.

    Args:
        file: such as `validation/<step>.jsonl` of a run.
        images: whether its prompts may have images. A dump has only their texts, which may be alike where the images
            differ; then rows must have the same id, apart from the number of a repeated row, to be the same question.

    Raises:
        RecipeError: the file is empty, or a line is no response, as in a file still being written.
    """
    responses: list[Response] = []
    try:
        for line in filter(bytes.strip, file.read_bytes().split(b"\n")):
            responses.append(_response(json.loads(line), images))
    except (KeyError, TypeError, ValueError) as error:
        what = f"response {len(responses) + 1} cannot be read: {type(error).__name__}: {error}"
        raise RecipeError(what, where=str(file), fix="wait until it is written, or remove the file") from error
    if not responses:
        raise RecipeError("the dump is empty", where=str(file), fix="wait until it is written, or remove the file")
    return Dump(file, tuple(responses))


def _response(record: dict[str, Any], images: bool) -> Response:
    prompt, text, truth, score = (record[name] for name in NEEDED)
    text = as_text(record[TURNS]) if ENDED in record and isinstance(record.get(TURNS), list) else text
    row_id, uid = record.get(ROW_ID), record.get("uid")
    if not math.isfinite(score):
        raise ValueError(f"its score is {score}, not a finite number")
    group = str(uid).rsplit("_", 2)[0] if uid else row_id
    if group is None:
        raise ValueError(f"it has neither uid nor {ROW_ID}, so its group is not known")
    accuracy = stated_accuracy(record)
    question = (str(prompt), str(truth), *([first_id(str(row_id or group))] if images else []))
    return Response(row_id, str(group), str(prompt), str(text), str(truth), question, float(score), accuracy)


class Measured(NamedTuple):
    """One validation: held-out accuracy, or held-out score where the reward states no accuracy."""

    measure: str  # "accuracy" or "score"
    value: float  # mean over the questions of all data sources, of each question's mean over its responses
    error: float  # standard error of the mean over the different questions; 0 for a single one, or equal means
    questions: int  # number of questions; 0 where they are not known
    different: int  # number of different ones

    @classmethod
    def of(cls, dump: Dump) -> Measured:
        """Measure the validation of a dump."""
        error = standard_error(dump.means, dump.clusters)
        return cls(dump.measure, fmean(dump.means), error, len(dump.means), len(set(dump.clusters)))


Each = TypeVar("Each", Dump, Measured)


def of_last_measure(validations: Mapping[int, Each]) -> dict[int, Each]:
    """The validations whose measure is the last one's; another reward may have stated none, or one."""
    last = validations[max(validations)].measure if validations else ""
    return {step: each for step, each in validations.items() if each.measure == last}


def measured(run: Path, recipe: Recipe | None, history: Iterable[Step]) -> dict[int, Measured]:
    """Step -> its validation, for the steps in `history` with a complete dump; only changed files are read again."""
    found, folder = {}, dump_folder(run, recipe, "validation")
    for step in (each.step for each in history if validation(each)):
        file = folder / f"{step}.jsonl"
        with suppress(RecipeError, FileNotFoundError):  # being written
            found[step] = _measured(file, file.stat().st_mtime_ns, may_show_images(recipe))
    return found


def held_out(run: Path, recipe: Recipe | None, step: Step) -> Measured | None:
    """A step's validation: of its dump, or as the trainer logged it where there is no dump and one data source.

    None without a validation, and where only means by data source are known: how many questions each has is not.
    """
    if found := measured(run, recipe, [step]).get(step.step):
        return found
    logged = validation(step)
    if logged is None or len(logged.means) > 1:
        return None
    (mean,) = logged.means.values()
    return Measured(logged.measure, mean, 0.0, 0, 0)


@cache
def _measured(file: Path, written_ns: int, images: bool) -> Measured:
    return Measured.of(read_dump(file, images=images))
