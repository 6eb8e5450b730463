"""The validations of a run: found, read, measured, and those that compare with one another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import NamedTuple, TypeVar

from recipes.config import Recipe
from recipes.errors import RecipeError, counted
from recipes.responses.files import ScoredFile, read_responses
from recipes.runs.metrics import Step, validation
from recipes.statistics import standard_error

DUMPS = ("rollouts", "validation")
"""The kinds of dumps, and their folders in a run's."""


def dump_folder(run: Path, recipe: Recipe | None, kind: str) -> Path:
    """The folder of a run's dumps: its own, which is moved and copied with it, or the one that its recipe names."""
    trainer = recipe.trainer if recipe else None
    named = trainer and (trainer.validation_data_dir if kind == "validation" else trainer.rollout_data_dir)
    is_own = not trainer or not named or Path(named).parts[-2:] == (trainer.experiment_name, kind)
    return run / kind if is_own else Path(str(named))


def read_validations(run: Path, recipe: Recipe | None, since: int = 0) -> tuple[dict[int, ScoredFile], list[str]]:
    """The validations that compare with the last one, by step, and a note on each other one.

    `since` is the first step with the present reward and questions (`folder.compares_since`).
    """
    found = dump_folder(run, recipe, "validation").glob("*.jsonl")
    files = dict(sorted((int(file.stem), file) for file in found if file.stem.isdecimal()))
    dumps: dict[int, ScoredFile] = {}
    notes = []
    if earlier := [step for step in files if step < since]:
        what = f"{counted(len(earlier), 'validation')}, the last of step {earlier[-1]}, left out"
        notes.append(f"{what}: the reward or the questions changed after step {since}")
    for step in (step for step in files if step >= since):
        try:
            dumps[step] = read_responses(files[step], images=may_show_images(recipe))
        except RecipeError as error:
            notes.append(f"validation of step {step} left out: {error.what}")
    same = of_last_measure(dumps)
    if others := [str(step) for step in dumps if step not in same]:
        notes.append(f"validations of steps {', '.join(others)} left out: the reward then had another measure")
    return same, notes


def may_show_images(recipe: Recipe | None) -> bool:
    """True where the prompts of a run may have images: also where its recipe is not known."""
    return recipe is None or recipe.worker.rollout.limit_images > 0


class Measured(NamedTuple):
    """One validation over its questions."""

    measure: str  # "accuracy", or "score" where the reward states no accuracy
    value: float  # mean over the questions of all data sources, of each question's mean over its responses
    error: float  # standard error of the mean over the different questions; 0 for a single one, or equal means
    questions: int  # number of questions; 0 where they are not known
    different: int  # number of different ones


Each = TypeVar("Each", ScoredFile, Measured)


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
    found = read_responses(file, images=images).measures
    error = standard_error(found.values, found.clusters)
    return Measured(found.measure, fmean(found.values), error, len(found.values), found.different)
