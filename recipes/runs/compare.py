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
from recipes.runs.responses import NO_IDS, Dump, Response, read_dump, validation_files
from recipes.statistics import SIGNIFICANCE, Interval, Paired, mean_with_interval, paired_difference

if TYPE_CHECKING:
    from rich.console import RenderableType

Curve = dict[int, Interval]
TRAINING = ("training score", "entropy", "KL")


def mean_of(dump: Dump) -> Interval:
    """The mean of what the dump's `measure` says, with an interval over the different questions."""
    ids = [group[0].row_id for group in dump.groups.values()] if dump.has_ids else None
    interval = mean_with_interval(dump.means, bounds=dump.bounds, clusters=ids)
    assert interval is not None  # a dump has responses
    return interval


def pair(first: Dump, second: Dump) -> Paired | None:
    """Compare two validations on the questions of both; None where they cannot be paired, as `why_not` tells."""
    same, _ = common(first, second)
    if first.measure != second.measure or not same:
        return None
    before, after = ([_mean(dump.answers[row]) for row in same] for dump in (first, second))
    return paired_difference(before, after, bounds=first.bounds)


def why_not(first: Dump, second: Dump) -> str:
    """The reason why two validations cannot be paired, in a sentence."""
    for dump in (first, second):
        if not dump.has_ids:
            return f"{dump.file.parent.parent.name}, step {dump.file.stem}: {NO_IDS}"
    if first.measure != second.measure:
        return f"one has a {first.measure} and the other a {second.measure}: their rewards differ"
    _, others = common(first, second)
    if others:
        return f"the {counted(others, 'row')} with the same id have another prompt or ground truth: other questions"
    return "the validations share no question"


def common(first: Dump, second: Dump) -> tuple[list[str], int]:
    """Ids with one prompt and one ground truth in both, and the number of ids that stand for different questions."""
    both = [row for row in first.answers if row in second.answers]
    same = [row for row in both if _question(first.answers[row]) == _question(second.answers[row])]
    return same, len(both) - len(same)


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
        paired: the second against the first there; None where they cannot be paired, for the reason `unpaired`.
        settings: key -> the two values, where they differ; None where a configuration cannot be read.
        notes: what is wrong with the validations, in sentences.
    """

    runs: tuple[Run, Run]
    measure: str
    curves: tuple[Curve, Curve]
    step: int | None
    paired: Paired | None
    unpaired: str
    settings: dict[str, tuple[Any, Any]] | None
    notes: tuple[str, ...] = ()


def compared(first: Run, second: Run) -> Compared:
    """Compare two runs. Raises RecipeError where one has no validation, or is compared with itself."""
    if first.folder == second.folder:
        raise RecipeError(f"{first.name} is compared with itself", where=str(first.folder), fix="name two runs")
    one, other = _validations(first), _validations(second)
    step = max(one.keys() & other.keys(), default=None)
    paired, unpaired = None, "the runs validated no step in common"
    notes = [f"{run.name}: {note}" for run in (first, second) for note in run.notes]
    if step is not None:
        paired = pair(one[step], other[step])
        unpaired = "" if paired else why_not(one[step], other[step])
        for run, dump in ((first, one[step]), (second, other[step])):
            notes += [f"{run.name}, validation of step {step}: {note}" for note in dump.notes if note != NO_IDS]
        others = common(one[step], other[step])[1]
        if paired and others:
            notes.append(f"{counted(others, 'row')} with the same id have other questions, and are not paired")
    curves = tuple({at: mean_of(dump) for at, dump in dumps.items()} for dumps in (one, other))
    measures = {dump.measure for dumps in (one, other) for dump in dumps.values()}
    return Compared(
        runs=(first, second),
        measure="score" if "score" in measures else "accuracy",
        curves=(curves[0], curves[1]),
        step=step,
        paired=paired,
        unpaired=unpaired,
        settings=_settings(first, second),
        notes=tuple(notes),
    )


def _validations(run: Run) -> dict[int, Dump]:
    if dumps := {step: read_dump(file) for step, file in validation_files(run.folder).items()}:
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
    value, *ends = (
        None if end is None else f"{scale * end:.{digits}f}" for end in (interval.value, interval.low, interval.high)
    )
    return f"{value} ({ends[0]} to {ends[1]})" if None not in ends else str(value)


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
    notes = [f"note: {note}" for note in result.notes]
    none = "no setting differs" if result.settings is not None else "settings cannot be compared"
    return Group(means, verdict(result), *notes, settings if result.settings else none)


def verdict(result: Compared) -> str:
    """One sentence on the last step that both validated."""
    first, second = (run.name for run in result.runs)
    if result.step is None:
        return result.unpaired
    if result.paired is None:
        return f"step {result.step} is not paired, so that only the intervals compare: {result.unpaired}"
    change, test = result.paired.difference, result.paired
    scale, unit, digits = (100, " points", 1) if result.measure == "accuracy" else (1, "", 3)
    ends = "no interval"
    if change.low is not None and change.high is not None:
        ends = f"95% interval {scale * change.low:+.{digits}f} to {scale * change.high:+.{digits}f}"
    return (
        f"step {result.step}, {counted(result.paired.questions, 'question')}: {second} - {first} = "
        f"{scale * change.value:+.{digits}f}{unit} ({ends}; {test.won} won, {test.lost} lost, p = {test.p_value:.2g}): "
        f"{'they differ' if test.p_value < SIGNIFICANCE else 'no difference is shown'}"
    )
