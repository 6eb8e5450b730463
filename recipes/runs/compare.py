"""Two runs side by side: held-out results with intervals, the paired difference, and the settings that differ."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, Any

from recipes.config.resolve import PRESET
from recipes.config.schema import Recipe, leaves
from recipes.errors import RecipeError, counted
from recipes.runs.folder import Run
from recipes.runs.metrics import SHOWN, number
from recipes.runs.responses import NO_IDS, Dump, read_validations
from recipes.statistics import SIGNIFICANCE, Interval, Paired, asked, mean_with_interval, paired_difference

if TYPE_CHECKING:
    from rich.console import RenderableType

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


def compared(first: Run, second: Run) -> RenderableType:
    """Held-out means by step, the paired difference, the last training metrics, and the settings that differ.

    Raises:
        RecipeError: a run has no validation, or is compared with itself.
    """
    from rich.console import Group
    from rich.table import Table

    if first.folder == second.folder:
        raise RecipeError(f"{first.name} is compared with itself", where=str(first.folder), fix="name two runs")
    notes: list[str] = []
    dumps = [_validations(run, notes) for run in (first, second)]
    measures = sorted({dump.measure for each in dumps for dump in each.values()})
    means = Table("step", first.name, second.name, title=title(*measures), box=None, pad_edge=False)
    for step in sorted(dumps[0].keys() | dumps[1].keys()):
        means.add_row(str(step), *(_cell(each.get(step), name_measure=len(measures) > 1) for each in dumps))
    for name in TRAINING:
        series = [run.series(*SHOWN[name]) for run in (first, second)]
        means.add_row(f"last {name}", *(number(values[-1][1] if values else None) for values in series))
    settings = Table("key", first.name, second.name, title="settings that differ", box=None, pad_edge=False)
    for key, values in _settings(first, second).items():
        settings.add_row(key, *map(str, values))
    for column in (*means.columns, *settings.columns):
        column.overflow = "fold"
    verdict = _verdict(first.name, second.name, dumps[0], dumps[1], notes)
    return Group(
        means, verdict, *(f"note: {note}" for note in notes), settings if settings.rows else "no setting differs"
    )


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
        f"step {step}, {asked(test.questions, test.different)}: {second} - {first} = "
        f"{scale * change.value:+.{digits}f}{unit} ({ends}; {test.won} won, {test.lost} lost, p = {test.p_value:.2g}): "
        f"{'they differ' if test.p_value < SIGNIFICANCE else 'no difference is shown'}"
    )


def _validations(run: Run, notes: list[str]) -> dict[int, Dump]:
    dumps, wrong = read_validations(run.folder, run.recipe, run.since)
    notes += [f"{run.name}: {note}" for note in (*run.notes, *wrong)]
    if dumps:
        return dumps
    raise RecipeError(
        f"the run {run.name} has no validation responses",
        where=str(run.folder / "validation"),
        fix="train with VAL_FREQ set",
    )


def _settings(first: Run, second: Run) -> dict[str, tuple[Any, Any]]:
    """Keys whose values differ, without the names of run and algorithm (whose keys count), and output folders."""
    if first.recipe is None or second.recipe is None:
        known = {True: "known", False: "cannot be read"}
        return {"config.yaml": (known[first.recipe is not None], known[second.recipe is not None])}
    pairs = {path: (first.recipe.value(path), second.recipe.value(path)) for path in leaves(Recipe)}
    own = {
        PRESET,
        "trainer.experiment_name",
        *(path for path, leaf in leaves(Recipe).items() if leaf.info.path == "output"),
    }
    return {path: pair for path, pair in pairs.items() if pair[0] != pair[1] and path not in own}


def shown(interval: Interval, measure: str) -> str:
    """A mean with its interval: an accuracy in percent, a score as it is."""
    scale, digits = (100, 1) if measure == "accuracy" else (1, 3)
    ends = [None if end is None else f"{scale * end:.{digits}f}" for end in (interval.low, interval.high)]
    return f"{scale * interval.value:.{digits}f}" + (f" ({ends[0]} to {ends[1]})" if None not in ends else "")


def title(*measures: str) -> str:
    """The heading of held-out means: of accuracies, of scores, or of both."""
    return f"held-out {' or '.join(UNITS[measure] for measure in measures)} (95% interval over questions)"
