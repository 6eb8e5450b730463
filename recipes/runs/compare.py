"""Two runs side by side: held-out results with intervals, the paired difference, and the settings that differ."""

from __future__ import annotations

from collections.abc import Sequence
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
    measure = "score" if any(dump.measure == "score" for each in dumps for dump in each.values()) else "accuracy"
    means = Table("step", first.name, second.name, title=title(measure), box=None, pad_edge=False)
    for step in sorted(dumps[0].keys() | dumps[1].keys()):
        means.add_row(str(step), *(shown(mean_of(each[step]), measure) if step in each else "-" for each in dumps))
    for name in TRAINING:
        series = [run.series(*SHOWN[name]) for run in (first, second)]
        means.add_row(f"last {name}", *(number(values[-1][1] if values else None) for values in series))
    settings = Table("key", first.name, second.name, title="settings that differ", box=None, pad_edge=False)
    for key, values in _settings(first, second).items():
        settings.add_row(key, *map(str, values))
    verdict = _verdict(first.name, second.name, *dumps, notes)
    return Group(means, verdict, *(f"note: {note}" for note in notes), settings if settings.rows else "no setting differs")


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
        f"step {step}, {counted(test.questions, 'question')}: {second} - {first} = "
        f"{scale * change.value:+.{digits}f}{unit} ({ends}; {test.won} won, {test.lost} lost, p = {test.p_value:.2g}): "
        f"{'they differ' if test.p_value < SIGNIFICANCE else 'no difference is shown'}"
    )


def _validations(run: Run) -> dict[int, Dump]:
    if dumps := {step: read_dump(file) for step, file in validation_files(run.folder).items()}:
        return dumps
    raise RecipeError(
        f"the run {run.name} has no validation responses",
        where=str(run.folder / "validation"),
        fix="train with VAL_FREQ set",
    )


def _settings(first: Run, second: Run) -> dict[str, tuple[Any, Any]]:
    """Keys with two values; names and folders, which always differ, left out."""
    if first.recipe is None or second.recipe is None:
        return {"configuration": tuple("known" if run.recipe else "cannot be read" for run in (first, second))}
    pairs = {path: (first.recipe.value(path), second.recipe.value(path)) for path in leaves(Recipe)}
    own = {"trainer.experiment_name", *(path for path, leaf in leaves(Recipe).items() if leaf.info.path == "output")}
    return {path: pair for path, pair in pairs.items() if pair[0] != pair[1] and path not in own}


def shown(interval: Interval, measure: str) -> str:
    """A mean with its interval: an accuracy in percent, a score as it is."""
    scale, digits = (100, 1) if measure == "accuracy" else (1, 3)
    value, *ends = (
        None if end is None else f"{scale * end:.{digits}f}" for end in (interval.value, interval.low, interval.high)
    )
    return f"{value} ({ends[0]} to {ends[1]})" if None not in ends else str(value)


def title(measure: str) -> str:
    """The heading of held-out means."""
    return f"held-out {measure}{', %' if measure == 'accuracy' else ''} (95% interval over questions)"
