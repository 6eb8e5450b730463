"""Two runs beside each other: held-out accuracy with intervals, the paired difference, and the settings that differ."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recipes.config.schema import Recipe, leaves
from recipes.drawing import BLUE, STYLE, WEAK, draw_accuracy
from recipes.errors import RecipeError, counted
from recipes.runs.dumps import NO_IDS, read_dump, validation_files
from recipes.runs.folder import Run
from recipes.runs.metrics import KL, number
from recipes.runs.validations import Paired, accuracy, pair, why_not
from recipes.statistics import SIGNIFICANCE, Interval

if TYPE_CHECKING:
    from rich.console import RenderableType

Curve = dict[int, Interval]
TRAINING = (("training score", ("critic/score/mean",)), ("entropy", ("actor/entropy",)), ("KL", KL))
COLOURS = (BLUE, WEAK)


@dataclass(frozen=True)
class Compared:
    """Two runs.

    Attributes:
        runs: both.
        curves: of each, step -> held-out accuracy with Wilson's interval over the questions.
        step: the last step that both validated; None where there is none.
        paired: the second against the first there; None where they cannot be paired, for the reason `unpaired`.
        notes: what is wrong with the validations, in sentences.
        settings: key -> the two values, where they differ.
    """

    runs: tuple[Run, Run]
    curves: tuple[Curve, Curve]
    step: int | None
    paired: Paired | None
    unpaired: str
    settings: dict[str, tuple[Any, Any]]
    notes: tuple[str, ...] = ()


def compared(first: Run, second: Run) -> Compared:
    """Compare two runs. Raises RecipeError where neither has a validation, or one is compared with itself."""
    if first.folder == second.folder:
        raise RecipeError(f"{first.name} is compared with itself", where=str(first.folder), fix="name two runs")
    dumps = validation_files(first.folder), validation_files(second.folder)
    for run, files in zip((first, second), dumps, strict=True):
        if not files:
            raise RecipeError(
                f"the run {run.name} has no validation responses",
                where=str(run.folder / "validation"),
                fix="train with VAL_FREQ set",
            )
    read = tuple({step: read_dump(file) for step, file in files.items()} for files in dumps)
    one, other = ({step: accuracy(dump) for step, dump in each.items()} for each in read)
    step = max(one.keys() & other.keys(), default=None)
    paired, unpaired, notes = None, "the runs validated no step in common", []
    if step is not None:
        both = read[0][step], read[1][step]
        paired = pair(*both)
        unpaired = "" if paired else why_not(*both)
        for run, dump in zip((first, second), both, strict=True):
            notes += [f"{run.name}, validation of step {step}: {note}" for note in dump.notes if note != NO_IDS]
    return Compared((first, second), (one, other), step, paired, unpaired, _settings(first, second), tuple(notes))


def _settings(first: Run, second: Run) -> dict[str, tuple[Any, Any]]:
    """Keys with two values; names and folders, which always differ, left out."""
    if first.recipe is None or second.recipe is None:
        return {}
    pairs = {path: (first.recipe.value(path), second.recipe.value(path)) for path in leaves(Recipe)}
    own = {"trainer.experiment_name", *(path for path, leaf in leaves(Recipe).items() if leaf.info.path == "output")}
    return {path: pair for path, pair in pairs.items() if pair[0] != pair[1] and path not in own}


def percent(interval: Interval | None) -> str:
    """A share with its interval, in percent."""
    if interval is None:
        return "-"
    if interval.low is None or interval.high is None:
        return f"{100 * interval.value:.1f}"
    return f"{100 * interval.value:.1f} ({100 * interval.low:.1f} to {100 * interval.high:.1f})"


def table(result: Compared) -> RenderableType:
    """Accuracy by step, the difference, the last training metrics, the settings."""
    from rich.console import Group
    from rich.table import Table

    names = [run.name for run in result.runs]
    shares = Table(title="held-out accuracy, % (95% interval over questions)", box=None, pad_edge=False)
    for head in ("step", *names):
        shares.add_column(head, overflow="fold")
    for step in sorted(result.curves[0].keys() | result.curves[1].keys()):
        shares.add_row(str(step), *(percent(curve.get(step)) for curve in result.curves))
    for name, keys in TRAINING:
        series = [[value for step in run.history if (value := step.get(*keys)) is not None] for run in result.runs]
        shares.add_row(f"last {name}", *(number(values[-1] if values else None) for values in series))
    settings = Table(title="settings that differ", box=None, pad_edge=False)
    for head in ("key", *names):
        settings.add_column(head, overflow="fold")
    for key, values in result.settings.items():
        settings.add_row(key, *map(str, values))
    notes = [f"note: {note}" for note in result.notes]
    return Group(shares, verdict(result), *notes, *([settings] if result.settings else ["no setting differs"]))


def verdict(result: Compared) -> str:
    """One sentence on the last step that both validated."""
    first, second = (run.name for run in result.runs)
    if result.step is None:
        return result.unpaired
    if result.paired is None:
        return f"step {result.step} is not paired, so that only the intervals compare: {result.unpaired}"
    questions, change, test = result.paired.questions, result.paired.difference, result.paired.mcnemar
    sure = "they differ" if test.p_value < SIGNIFICANCE else "no difference is shown"
    return (
        f"step {result.step}, {counted(questions, 'question')}: {second} - {first} = {100 * change.value:+.1f} points "
        f"(95% interval {100 * (change.low or 0):+.1f} to {100 * (change.high or 0):+.1f}; "
        f"{test.won} won, {test.lost} lost, McNemar p = {test.p_value:.2g}): {sure}"
    )


def draw(result: Compared, path: Path) -> None:
    """Held-out accuracy of both with intervals, and their training scores, as SVG. The same runs give the same file."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({**STYLE, "svg.hashsalt": "compare"}):
        figure = Figure(figsize=(7.2, 5.4))
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[3, 2])
        for run, curve, colour in zip(result.runs, result.curves, COLOURS, strict=True):
            draw_accuracy(upper, curve, colour, run.name)
            scored = [step for step in run.history if step.get("critic/score/mean") is not None]
            lower.plot([s.step for s in scored], [s.get("critic/score/mean") for s in scored], color=colour)
        upper.set(ylim=(0, 1), ylabel="held-out accuracy")
        lower.set(ylabel="training score", xlabel="step")
        upper.legend(loc="lower right")
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="svg", metadata={"Date": None})
