"""Runs side by side: held-out results with intervals, paired differences, and the settings that differ."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from recipes.config.resolve import PRESET
from recipes.config.schema import Recipe, leaves
from recipes.errors import RecipeError, counted
from recipes.paths import ROOT
from recipes.runs.folder import Run
from recipes.runs.metrics import SHOWN, number
from recipes.runs.responses import NO_IDS, Dump, read_validations
from recipes.statistics import SIGNIFICANCE, Interval, Paired, counted_questions, mean_with_interval, paired_difference

TRAINING = ("training score", "entropy", "KL")
UNITS = {"accuracy": "accuracy, %", "score": "score"}


def mean_of(dump: Dump) -> Interval:
    """Mean accuracy or score of a dump, with an interval over the questions."""
    return mean_with_interval(dump.means, bounds=dump.bounds, clusters=dump.clusters)


def pair(first: Dump, second: Dump) -> Paired:
    """Compare two validations on the questions that both have: rows with the same id, prompt and ground truth.

    Raises:
        RecipeError: the validations cannot be paired; the error states why.
    """
    where = f"{first.file} and {second.file}"
    if first.measure != second.measure:
        what = f"one is measured by {first.measure} and the other by {second.measure}: their rewards differ"
        raise RecipeError(what, where=where)
    same, _ = _shared(first, second)
    if not same:
        raise RecipeError(_differ(first, second) or "the validations share no question", where=where)
    before, after = ([fmean(each.value for each in dump.answers[row]) for row in same] for dump in (first, second))
    questions = [first.answers[row][0].question for row in same]
    return paired_difference(before, after, bounds=first.bounds, clusters=questions)


def _shared(first: Dump, second: Dump) -> tuple[list[str], list[str]]:
    """Ids that both dumps have: those whose prompt and ground truth agree in all responses, and the others."""
    same: list[str] = []
    others: list[str] = []
    for row in (row for row in first.answers if row in second.answers):
        questions = {(each.prompt, each.truth) for each in (*first.answers[row], *second.answers[row])}
        (same if len(questions) == 1 else others).append(row)
    return same, others


def _differ(first: Dump, second: Dump) -> str:
    """A sentence on rows that cannot be paired: without ids, or with another question under the same id."""
    for dump in (first, second):
        if not dump.answers:
            return f"{dump.file.parent.parent.name}, step {dump.file.stem}: {NO_IDS}"
    _, others = _shared(first, second)
    return f"{counted(len(others), 'row')} with the same id have another prompt or ground truth" if others else ""


class Compared:
    """Runs side by side: held-out means by step, paired differences to the first, and the settings that differ.

    Raises RecipeError where a run has no validation, or is named twice.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        if len({run.folder for run in runs}) < max(2, len(runs)):
            raise RecipeError("a run is compared with itself", where=str(runs[0].folder), fix="name two runs or more")
        self.runs, self.notes = runs, list[str]()
        self.dumps = [_validations(run, self.notes) for run in runs]
        self.settings = settings_that_differ(runs)
        pairs = zip(runs[1:], self.dumps[1:], strict=True)
        self.verdicts = [_verdict(runs[0].name, run.name, self.dumps[0], dumps, self.notes) for run, dumps in pairs]

    @property
    def names(self) -> list[str]:
        """What tells the runs apart: their names, or one or two settings that differ, where these do."""
        settings = [[f"{key.rpartition('.')[2]} {value}" for value in values] for key, values in self.settings.items()]
        names = [", ".join(each) for each in zip(*settings, strict=True)]
        return names if len(settings) <= 2 and len(set(names)) == len(self.runs) else [run.name for run in self.runs]

    @property
    def heading(self) -> str:
        """What the means are."""
        return title(*sorted({dump.measure for each in self.dumps for dump in each.values()}))

    def means(self) -> list[tuple[str, ...]]:
        """Rows of the table: the mean of each run at each validated step, and the last training metrics."""
        several = len({dump.measure for each in self.dumps for dump in each.values()}) > 1
        rows = [("step", *(run.name for run in self.runs))]
        for step in sorted(set().union(*self.dumps)):
            rows.append((str(step), *(_cell(each.get(step), name_measure=several) for each in self.dumps)))
        for name in TRAINING:
            series = [run.series(*SHOWN[name]) for run in self.runs]
            rows.append((f"last {name}", *(number(values[-1][1] if values else None) for values in series)))
        return rows

    def text(self) -> str:
        """Everything as text, whose lines are never broken."""
        settings = [(key, *map(str, values)) for key, values in self.settings.items()]
        head = ("settings that differ", *(run.name for run in self.runs))
        differ = aligned([head, *settings]) if settings else "no setting differs"
        notes = [f"note: {note}" for note in self.notes]
        return "\n".join([self.heading, aligned(self.means()), *self.verdicts, *notes, differ])


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Rows of a table as lines with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(map(str.rstrip, lines))


def _cell(dump: Dump | None, *, name_measure: bool) -> str:
    if dump is None:
        return "-"
    return (f"{dump.measure} " if name_measure else "") + shown(mean_of(dump), dump.measure)


def _verdict(first: str, second: str, one: dict[int, Dump], other: dict[int, Dump], notes: list[str]) -> str:
    """One sentence on the last step that both runs validated; what cannot be paired is added to the notes."""
    step = max(one.keys() & other.keys(), default=None)
    if step is None:
        return "the runs validated no step in common"
    try:
        test = pair(one[step], other[step])
    except RecipeError as error:
        return f"step {step} is not paired, so that only the intervals compare: {error.what}"
    notes += filter(None, [_differ(one[step], other[step])])
    change = test.difference
    scale, unit, digits = (100, " points", 1) if one[step].measure == "accuracy" else (1, "", 3)
    ends = "no interval"
    if change.low is not None and change.high is not None:
        ends = f"95% interval {scale * change.low:+.{digits}f} to {scale * change.high:+.{digits}f}"
    return (
        f"step {step}, {counted_questions(test.questions, test.different)}: {second} - {first} = "
        f"{scale * change.value:+.{digits}f}{unit} ({ends}; {test.won} won, {test.lost} lost, p = {test.p_value:.2g}): "
        f"{'they differ' if test.p_value < SIGNIFICANCE else 'no difference is shown'}"
    )


def _validations(run: Run, notes: list[str]) -> dict[int, Dump]:
    dumps, wrong = read_validations(run.folder, run.recipe, run.since)
    notes += [f"{run.name}: {note}" for note in (*run.notes, *wrong)]
    if dumps:
        return dumps
    why = "".join(f"; {note}" for note in wrong[:1])
    raise RecipeError(
        f"the run {run.name} has no validation responses to compare{why}",
        where=str(run.folder / "validation"),
        fix="" if wrong else "train with VAL_FREQ set",
    )


def settings_that_differ(runs: Sequence[Run]) -> dict[str, list[Any]]:
    """Key -> its value in each run, without names, folders and whether to resume; an algorithm's keys count alone."""
    recipes = [run.recipe for run in runs if run.recipe]
    if len(recipes) < len(runs):
        return {"config.yaml": ["known" if run.recipe else "cannot be read" for run in runs]}
    keys = (key for key, leaf in leaves(Recipe).items() if leaf.info.resume != "place" and key != PRESET)
    every = {key: [_short(recipe.value(key)) for recipe in recipes] for key in keys}
    return {key: values for key, values in every.items() if any(value != values[0] for value in values)}


def _short(value: Any) -> Any:
    """A path below the working folder or the repository without it."""
    return value.replace(f"{ROOT}/", "") if isinstance(value, str) else value


def shown(interval: Interval, measure: str) -> str:
    """A mean with its interval: an accuracy in percent, a score as it is."""
    scale, digits = (100, 1) if measure == "accuracy" else (1, 3)
    ends = [None if end is None else f"{scale * end:.{digits}f}" for end in (interval.low, interval.high)]
    return f"{scale * interval.value:.{digits}f}" + (f" ({ends[0]} to {ends[1]})" if None not in ends else "")


def title(*measures: str) -> str:
    """The heading of held-out means: of accuracies, of scores, or of both."""
    return f"held-out {' or '.join(UNITS[measure] for measure in measures)} (95% interval over questions)"
