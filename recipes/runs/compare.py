"""Two runs side by side: held-out results with intervals, the paired difference, and the settings that differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from recipes.config.schema import Recipe, leaves
from recipes.errors import RecipeError, counted
from recipes.runs.folder import Run
from recipes.runs.metrics import SHOWN, number
from recipes.runs.responses import NO_IDS, Dump, Response, read_validations
from recipes.statistics import SIGNIFICANCE, Interval, Paired, mean_with_interval, paired_difference

if TYPE_CHECKING:
    from rich.console import RenderableType

Curve = dict[int, Interval]
TRAINING = ("training score", "entropy", "KL")


def mean_of(dump: Dump) -> Interval:
    """Mean accuracy or score of a dump, with an interval over the questions."""
    interval = mean_with_interval(dump.means, bounds=dump.bounds)
    assert interval is not None  # a dump has responses
    return interval


def pair(first: Dump, second: Dump) -> Paired:
    """Compare two validations on the questions of both: rows with one id, one prompt and one ground truth.

    Raises:
        RecipeError: they cannot be paired, for the reason that it states.
    """
    where = f"{first.file} and {second.file}"
    if first.measure != second.measure:
        what = f"one has a {first.measure} and the other a {second.measure}: their rewards differ"
        raise RecipeError(what, where=where)
    same = [row for row in _shared(first, second) if _question(first.answers[row]) == _question(second.answers[row])]
    if not same:
        raise RecipeError(_differ(first, second) or "the validations share no question", where=where)
    before, after = ([_mean(dump.answers[row]) for row in same] for dump in (first, second))
    return paired_difference(before, after, bounds=first.bounds)


def _shared(first: Dump, second: Dump) -> list[str]:
    return [row for row in first.answers if row in second.answers]


def _differ(first: Dump, second: Dump) -> str:
    """A sentence on rows that are no pair: without ids, or with another question under the same id."""
    for dump in (first, second):
        if not dump.answers:
            return f"{dump.file.parent.parent.name}, step {dump.file.stem}: {NO_IDS}"
    others = sum(_question(first.answers[row]) != _question(second.answers[row]) for row in _shared(first, second))
    return f"{counted(others, 'row')} with the same id have another prompt or ground truth" if others else ""


def _question(answers: Sequence[Response]) -> tuple[str, str]:
    return answers[0].prompt, answers[0].truth


def _mean(answers: Sequence[Response]) -> float:
    return fmean(response.value for response in answers)


@dataclass(frozen=True)
class Compared:
    """Two runs.

    Attributes:
        runs: both.
        measure: what their validations measure: "accuracy", or "score" where a reward states no accuracy.
        curves: of each, step -> held-out mean with its interval over the questions.
        step: the last step that both validated; None where there is none.
        paired: the second against the first there; None where they cannot be paired.
        settings: key -> the two values, where they differ; None where a configuration cannot be read.
        notes: why rows are not paired, and what cannot be read, in sentences.
    """

    runs: tuple[Run, Run]
    measure: str
    curves: tuple[Curve, Curve]
    step: int | None
    paired: Paired | None
    settings: dict[str, tuple[Any, Any]] | None
    notes: tuple[str, ...] = ()


def compared(first: Run, second: Run) -> Compared:
    """Compare two runs. Raises RecipeError where one has no validation, or is compared with itself."""
    if first.folder == second.folder:
        raise RecipeError(f"{first.name} is compared with itself", where=str(first.folder), fix="name two runs")
    notes: list[str] = []
    one, other = _validations(first, notes), _validations(second, notes)
    step, paired = max(one.keys() & other.keys(), default=None), None
    if step is None:
        notes.append("the runs validated no step in common")
    else:
        try:
            paired = pair(one[step], other[step])
            notes += filter(None, [_differ(one[step], other[step])])
        except RecipeError as error:
            notes.append(f"step {step} is not paired, so that only the intervals compare: {error.what}")
    curves = tuple({at: mean_of(dump) for at, dump in dumps.items()} for dumps in (one, other))
    measures = {dump.measure for dumps in (one, other) for dump in dumps.values()}
    return Compared(
        runs=(first, second),
        measure="score" if "score" in measures else "accuracy",
        curves=(curves[0], curves[1]),
        step=step,
        paired=paired,
        settings=_settings(first, second),
        notes=tuple(notes),
    )


def _validations(run: Run, notes: list[str]) -> dict[int, Dump]:
    dumps, wrong = read_validations(run.folder)
    notes += [f"{run.name}: {note}" for note in (*run.notes, *wrong)]
    if dumps:
        return dumps
    raise RecipeError(
        f"the run {run.name} has no validation responses",
        where=str(run.folder / "validation"),
        fix="train with VAL_FREQ set",
    )


def _settings(first: Run, second: Run) -> dict[str, tuple[Any, Any]] | None:
    """Keys with two values; names and folders, which always differ, left out."""
    if first.recipe is None or second.recipe is None:
        return None
    pairs = {path: (first.recipe.value(path), second.recipe.value(path)) for path in leaves(Recipe)}
    own = {"trainer.experiment_name", *(path for path, leaf in leaves(Recipe).items() if leaf.info.path == "output")}
    return {path: pair for path, pair in pairs.items() if pair[0] != pair[1] and path not in own}


def shown(interval: Interval | None, measure: str) -> str:
    """A mean with its interval: an accuracy in percent, a score as it is."""
    if interval is None:
        return "-"
    scale, digits = (100, 1) if measure == "accuracy" else (1, 3)
    ends = [None if end is None else f"{scale * end:.{digits}f}" for end in (interval.low, interval.high)]
    return f"{scale * interval.value:.{digits}f}" + (f" ({ends[0]} to {ends[1]})" if None not in ends else "")


def title(measure: str) -> str:
    """The heading of held-out means."""
    return f"held-out {measure}{', %' if measure == 'accuracy' else ''} (95% interval over questions)"


def table(result: Compared) -> RenderableType:
    """Means by step, the difference, the last training metrics, the settings."""
    from rich.console import Group
    from rich.table import Table

    names = [run.name for run in result.runs]
    means = Table(title=title(result.measure), box=None, pad_edge=False)
    settings = Table(title="settings that differ", box=None, pad_edge=False)
    for columns, first in ((means, "step"), (settings, "key")):
        for head in (first, *names):
            columns.add_column(head, overflow="fold")
    for step in sorted(result.curves[0].keys() | result.curves[1].keys()):
        means.add_row(str(step), *(shown(curve.get(step), result.measure) for curve in result.curves))
    for name in TRAINING:
        series = [run.series(*SHOWN[name]) for run in result.runs]
        means.add_row(f"last {name}", *(number(values[-1][1] if values else None) for values in series))
    for key, values in (result.settings or {}).items():
        settings.add_row(key, *map(str, values))
    lines = [verdict(result)] if result.paired else []
    none = "no setting differs" if result.settings is not None else "settings cannot be compared"
    return Group(means, *lines, *(f"note: {note}" for note in result.notes), settings if result.settings else none)


def verdict(result: Compared) -> str:
    """One sentence on the paired difference at the last step that both validated."""
    assert result.paired is not None
    (first, second), test = (run.name for run in result.runs), result.paired
    change = test.difference
    scale, unit, digits = (100, " points", 1) if result.measure == "accuracy" else (1, "", 3)
    ends = "no interval"
    if change.low is not None and change.high is not None:
        ends = f"95% interval {scale * change.low:+.{digits}f} to {scale * change.high:+.{digits}f}"
    return (
        f"step {result.step}, {counted(test.questions, 'question')}: {second} - {first} = "
        f"{scale * change.value:+.{digits}f}{unit} ({ends}; {test.won} won, {test.lost} lost, p = {test.p_value:.2g}): "
        f"{'they differ' if test.p_value < SIGNIFICANCE else 'no difference is shown'}"
    )
