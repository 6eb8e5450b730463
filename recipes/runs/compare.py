"""Runs and evaluations side by side: held-out results with intervals, paired differences, settings that differ."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from recipes.config.resolve import PRESET
from recipes.config.schema import Recipe, leaves
from recipes.errors import RecipeError
from recipes.model_files import read_json
from recipes.paths import ROOT, in_artifacts
from recipes.responses.files import ScoredFile, pair, read_responses, unpaired
from recipes.responses.measures import BY_MEASURE
from recipes.runs.folder import Run, find, read
from recipes.runs.metrics import SHOWN, number, read_validations
from recipes.statistics import SIGNIFICANCE, Interval, counted_questions
from recipes.yaml_text import flow

TRAINING = ("training score", "entropy", "KL")
UNREADABLE = "config.yaml"
"""Name among the settings of runs whose configuration cannot be read in one of them."""


class Side(NamedTuple):
    """A run with its validations, or an evaluated model with its passes."""

    name: str
    folder: Path
    files: dict[Any, ScoredFile]  # by step, or by pass: "greedy" and "sampled"
    notes: list[str]
    run: Run | None  # None for an evaluation

    def compared_with(self, other: Side) -> Any:
        """The key of the file to compare: the last common step, or greedy answers; None where the two share none.

        Of a run beside an evaluation it is the last validation, of an evaluation the pass that is sampled like it.
        """
        if (self.run is None) == (other.run is None):
            return (max if self.run else min)(self.files.keys() & other.files.keys(), default=None)
        if self.run is not None:
            return max(self.files)
        rollout = other.run.recipe.worker.rollout if other.run and other.run.recipe else None
        temperature = rollout and rollout.val_override_config.temperature
        return "greedy" if temperature == 0 and "greedy" in self.files else "sampled"


def find_side(name: str) -> Side:
    """The run of this name, or the run or evaluation in this folder; of an evaluation the trained model counts.

    Raises RecipeError where it is not there, or has no responses to compare.
    """
    folder = Path(in_artifacts(name)).absolute()
    if models := read_json(folder / "report.json").get("models"):
        *_, label = models
        passes = {name: summary["sampling"] for name, summary in models[label]["passes"].items()}
        evaluated = {each: read_responses(folder / "completions" / f"{label}_{each}.jsonl") for each in passes}
        notes = [f"{folder.name}: {each}: {flow(sampling)}" for each, sampling in passes.items()]
        return Side(folder.name, folder, evaluated, notes, None)
    run = read(find(name))
    files, wrong = read_validations(run.folder, run.recipe, run.since)
    if files:
        notes = [f"{run.name}: {note}" for note in (*run.notes, *wrong)]
        return Side(run.name, run.folder, {**files}, notes, run)
    why = "".join(f"; {note}" for note in wrong[:1])
    what = f"the run {run.name} has no validation responses to compare{why}"
    raise RecipeError(what, where=str(run.folder / "validation"), fix="" if wrong else "train with VAL_FREQ set")


class Compared:
    """Runs and evaluations, the others paired with the first. Raises RecipeError where one is named twice."""

    def __init__(self, sides: Sequence[Side]) -> None:
        if len({side.folder for side in sides}) < max(2, len(sides)):
            raise RecipeError("a run is compared with itself", where=str(sides[0].folder), fix="name two runs or more")
        self.sides, self.notes = sides, [note for side in sides for note in side.notes]
        self.runs = [side.run for side in sides if side.run]
        self.settings = settings_that_differ(self.runs)
        self.verdicts = [_verdict(sides[0], side, self.notes) for side in sides[1:]]
        self._measures = sorted({file.measure for side in sides for file in side.files.values()})

    @property
    def names(self) -> list[str]:
        """Texts that tell the sides apart: their names, or one or two settings that differ, where these do."""
        settings = [[f"{key.rpartition('.')[2]} {value}" for value in values] for key, values in self.settings.items()]
        names = [", ".join(each) for each in zip(*settings, strict=True)]
        tell = len(settings) <= 2 and len(set(names)) == len(self.sides) and UNREADABLE not in self.settings
        return names if tell else [side.name for side in self.sides]

    @property
    def heading(self) -> str:
        return title(*self._measures)

    def means(self) -> list[tuple[str, ...]]:
        """Rows of the table: the mean at each validated step or of each pass, and the last training metrics."""
        several = len(self._measures) > 1
        rows = [("step", *(side.name for side in self.sides))]
        places = {place for side in self.sides for place in side.files}
        for place in sorted(places, key=lambda each: (isinstance(each, str), each)):
            files = [side.files.get(place) for side in self.sides]
            means = [shown(file.measures.mean, file.measure) if file else "-" for file in files]
            named = [f"{file.measure} " if file and several else "" for file in files]
            rows.append((str(place), *map("".join, zip(named, means, strict=True))))
        for name in TRAINING if self.runs else ():
            series = [side.run.series(*SHOWN[name]) if side.run else [] for side in self.sides]
            rows.append((f"last {name}", *(number(values[-1][1] if values else None) for values in series)))
        return rows

    def text(self) -> str:
        """Everything as text, whose lines are never broken."""
        settings = [(key, *map(str, values)) for key, values in self.settings.items()]
        head = ("settings that differ", *(run.name for run in self.runs))
        differ = [aligned([head, *settings]) if settings else "no setting differs"] if len(self.runs) > 1 else []
        notes = [f"note: {note}" for note in self.notes]
        return "\n".join([self.heading, aligned(self.means()), *self.verdicts, *notes, *differ])


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Rows of a table as lines with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(map(str.rstrip, lines))


def _verdict(first: Side, second: Side, notes: list[str]) -> str:
    """One sentence on what both have, of runs their last common step; rows that cannot be paired are in the notes."""
    one, other = first.compared_with(second), second.compared_with(first)
    if one is None or other is None:
        return "the runs validated no step in common"
    place = " and ".join(dict.fromkeys(f"step {each}" if isinstance(each, int) else each for each in (one, other)))
    before, after = first.files[one], second.files[other]
    try:
        test = pair(before, after)
    except RecipeError as error:
        return f"{place} is not paired, so that only the intervals compare: {error.what}"
    notes += filter(None, [unpaired(before, after)])
    change = BY_MEASURE[before.measure].cell(test.difference, difference=True)
    return (
        f"{place}, {counted_questions(test.questions, test.different)}: {second.name} - {first.name} = "
        f"{change.value} ({change.ends}; {test.won} won, {test.lost} lost, p = {test.p_value:.2g}): "
        f"{'they differ' if test.p_value < SIGNIFICANCE else 'no difference is shown'}"
    )


def settings_that_differ(runs: Sequence[Run]) -> dict[str, list[Any]]:
    """Key -> its value in each run, without names, folders and whether to resume; an algorithm's keys count alone."""
    recipes = [run.recipe for run in runs if run.recipe]
    if len(recipes) < len(runs):
        return {UNREADABLE: ["known" if run.recipe else "cannot be read" for run in runs]}
    keys = (key for key, leaf in leaves(Recipe).items() if leaf.info.resume != "place" and key != PRESET)
    every = {key: [_short(recipe.value(key)) for recipe in recipes] for key in keys}
    return {key: values for key, values in every.items() if any(value != values[0] for value in values)}


def _short(value: Any) -> Any:
    return value.replace(f"{ROOT}/", "") if isinstance(value, str) else value


def shown(interval: Interval, measure: str) -> str:
    """A mean with its interval: an accuracy in percent, a score as it is."""
    return str(BY_MEASURE[measure].cell(interval))


def title(*measures: str) -> str:
    """The heading of held-out means: of accuracies, of scores, or of both."""
    return f"held-out {' or '.join(BY_MEASURE[measure].label for measure in measures)} (95% interval over questions)"
