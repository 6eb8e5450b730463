"""`python -m tools.learning_curves RUN... --output FILE`: curves of a run or of several seeds, as JSON and SVG."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from recipes.drawing import BAD, BLUE, SLATE, STYLE, draw_means, interval_ends
from recipes.errors import RecipeError, reported_errors
from recipes.paths import relative_to_cwd
from recipes.responses.files import pair
from recipes.runs.compare import settings_that_differ
from recipes.runs.folder import ATTEMPT, read
from recipes.runs.metrics import read_validations
from recipes.statistics import Interval, Paired, mean_over_seeds

app = typer.Typer(add_completion=False, rich_markup_mode=None)
# Name in a curve -> verl's metric. KL has two metrics: one where it acts in the reward, one where it acts in the loss.
TRAINING = {
    "score": "critic/score/mean",
    "entropy": "actor/entropy",
    "kl_reward": "actor/reward_kl_penalty",
    "kl_loss": "actor/kl_loss",
    "grad_norm": "actor/grad_norm",
    "seconds": "timing_s/step",
}
KL_LABELS = {"kl_reward": "KL to the reference, in the reward", "kl_loss": "KL to the reference, in the loss"}


@dataclass(frozen=True)
class Curve:
    """One run."""

    run: str  # its name
    validation: dict[int, Interval]  # step -> mean accuracy or score, with an interval over the questions
    training: list[dict[str, float]]  # one entry a step: `step`, and those of `TRAINING` that the run logged
    # The last validation against the first; None where they cannot be paired, and `notes` says why.
    paired: Paired | None
    notes: list[str] = field(default_factory=list)  # what is wrong with the validations, in sentences
    # From the launch to the last metrics, start-up included; None for a run that was resumed.
    seconds: float | None = None


def learning_curve(folder: Path) -> Curve:
    """Validation at each validated step, training metrics of each step, and last against first.

    Args:
        folder: such as `artifacts/runs/<experiment>`.
    """
    if not folder.is_dir():
        raise RecipeError(
            "there is no such run", where=str(folder), fix="`python scripts/monitor.py list` names those there are"
        )
    run = read(folder)
    dumps, notes = read_validations(folder, run.recipe)
    if len(dumps) < 2:
        raise RecipeError(
            f"a curve needs two validations, and the run has {len(dumps)}",
            where=str(folder / "validation"),
            fix="train with VAL_FREQ set to fewer steps than the run has",
        )
    paired = None
    try:
        paired = pair(dumps[min(dumps)], dumps[max(dumps)])
    except RecipeError as error:
        notes.append(f"not paired: {error.what}")
    training = [
        {"step": step.step, **{name: value for name, key in TRAINING.items() if (value := step.get(key)) is not None}}
        for step in run.history
        if TRAINING["score"] in step.data
    ]
    return Curve(
        run=folder.name,
        validation={step: dump.measures.mean for step, dump in dumps.items()},
        training=training,
        paired=paired,
        notes=notes,
        seconds=_seconds(folder),
    )


def _seconds(folder: Path) -> float | None:
    """Return the seconds from the log's only attempt line to the metrics file's mtime; None for several attempts."""
    log = folder / "train.log"
    if not log.is_file():
        return None
    with log.open(encoding="utf-8", errors="replace") as lines:
        attempts = [line.removeprefix(ATTEMPT).strip() for line in lines if line.startswith(ATTEMPT)]
    if len(attempts) != 1:
        return None
    return (folder / "metrics.jsonl").stat().st_mtime - datetime.fromisoformat(attempts[0]).timestamp()


@dataclass(frozen=True)
class Learning:
    """Several runs that differ in their seed only."""

    curves: list[Curve]
    # Step -> mean accuracy over the runs, Student's t interval; only steps that every run validated.
    mean: dict[int, Interval]
    change: Interval  # mean over the runs of the accuracy at the last of those steps minus that at the first
    # k -> pass@k before, after and the change, see the function `pass_at_k`; empty without reports.
    pass_at_k: dict[int, dict[str, Interval]] = field(default_factory=dict)


def learning(runs: Sequence[Path], reports: Sequence[Path] = (), may: Sequence[str] = ()) -> Learning:
    """The curves of runs that differ in their seed.

    Args:
        runs: folders such as `artifacts/runs/<experiment>`, with `metrics.jsonl` and `validation/<step>.jsonl`.
        reports: `report.json` of evaluations that compare a run's checkpoint with its base model.
        may: keys that may differ besides the seeds.

    Raises:
        RecipeError: runs with other settings, a run with fewer than two validations, or runs without two common ones.
    """
    curves = [learning_curve(run) for run in runs]
    settings = settings_that_differ([run for run in map(read, runs) if run.recipe])
    if differ := {key: values for key, values in settings.items() if key not in may and not key.endswith(".seed")}:
        shown = "; ".join(f"{key} {' | '.join(map(str, values))}" for key, values in differ.items())
        raise RecipeError(
            f"the runs differ in more than their seed: {shown}",
            where=", ".join(map(str, runs)),
            fix="python scripts/monitor.py compare shows several runs; --may_differ KEY allows a key",
        )
    steps = sorted(set.intersection(*(set(curve.validation) for curve in curves)))
    if len(steps) < 2:
        raise RecipeError(
            "the runs have fewer than two validated steps in common",
            where=", ".join(map(str, runs)),
            fix="give runs of the same length with the same VAL_FREQ",
        )
    mean = {step: mean_over_seeds([curve.validation[step].value for curve in curves]) for step in steps}
    changes = [curve.validation[steps[-1]].value - curve.validation[steps[0]].value for curve in curves]
    return Learning(curves, mean, mean_over_seeds(changes), pass_at_k(reports))


def pass_at_k(reports: Sequence[Path]) -> dict[int, dict[str, Interval]]:
    """Return pass@k `before`, `after` and the `change`; `before` is the first report's, as all have the same base.

    Args:
        reports: evaluations against the base, with the same k. Several give `after` and `change` as means over seeds
            (Student's t); a single one keeps its own intervals.
    """
    found: dict[int, dict[str, list[dict[str, Any]]]] = {}
    for report in reports:
        content = json.loads(report.read_text(encoding="utf-8"))
        parts = {"before": content["models"]["base"]["passes"], "after": content["models"]["trained"]["passes"]}
        figures = {name: part["sampled"]["figures"] for name, part in parts.items()}
        for name, each in (figures | {"change": content["comparison"]["differences"]["sampled"]}).items():
            for figure in (figure for figure in each if figure.startswith("pass@")):
                found.setdefault(int(figure.removeprefix("pass@")), {}).setdefault(name, []).append(each[figure])

    def over_runs(name: str, of: list[dict[str, Any]]) -> Interval:
        if len(of) > 1 and name != "before":
            return mean_over_seeds([each["value"] for each in of])
        return Interval(of[0]["value"], of[0]["low"], of[0]["high"], "over questions")

    return {k: {name: over_runs(name, of) for name, of in each.items()} for k, each in sorted(found.items())}


def draw(result: Learning, path: Path) -> None:
    """Draw accuracy and KL by step as SVG: one run with its intervals, several as mean and band over thin lines.

    The same curves give the same file.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    places = [name for name in KL_LABELS if any(entry.get(name) for curve in result.curves for entry in curve.training)]
    with mpl.rc_context({**STYLE, "svg.hashsalt": "learning"}):
        figure = Figure(figsize=(7.2, 5.0 if places else 3.6))
        heights = [3, 1.2] if places else [1]
        axes = figure.subplots(len(heights), sharex=True, squeeze=False, height_ratios=heights)[:, 0]
        _draw_accuracies(axes[0], result)
        for name in places:
            for curve in result.curves:
                points = [(entry["step"], entry[name]) for entry in curve.training if name in entry]
                label = KL_LABELS[name] if curve is result.curves[0] else None
                style = "-" if name == "kl_reward" else "--"
                axes[1].plot(*zip(*points, strict=True), style, color=BAD, label=label)
        if places:
            axes[1].set_ylabel("nats")
            axes[1].legend(loc="best")
        axes[-1].set_xlabel("step")
        figure.savefig(path, format="svg", metadata={"Date": None})


def _draw_accuracies(axes: Any, result: Learning) -> None:
    several = len(result.curves) > 1
    for curve in result.curves:
        first = curve is result.curves[0]
        steps, scores = ([entry[name] for entry in curve.training] for name in ("step", "score"))
        label = "score of the training responses, sampled" if first else None
        axes.plot(steps, scores, color=SLATE, linewidth=0.8 if several else 1.2, alpha=0.7, label=label)
        if several:
            values = [interval.value for interval in curve.validation.values()]
            label = "held-out accuracy, each seed" if first else None
            axes.plot(list(curve.validation), values, color=BLUE, linewidth=0.8, alpha=0.45, label=label)
    if several:
        label = f"mean of {len(result.curves)} seeds"
        axes.plot(list(result.mean), [mean.value for mean in result.mean.values()], color=BLUE, marker="o", label=label)
        label = "95% interval over seeds (Student's t)"
        axes.fill_between(list(result.mean), *interval_ends(result.mean), color=BLUE, alpha=0.15, label=label)
    else:
        label = "greedy accuracy on held-out questions, 95% interval"
        draw_means(axes, result.curves[0].validation, BLUE, label)
    axes.set(ylabel="accuracy")
    axes.set_ylim(bottom=0)
    axes.legend(loc="best")


@app.command()
def main(
    runs: Annotated[list[Path], typer.Argument(help="runs' folders, such as artifacts/runs/countdown; one per seed")],
    output: Annotated[Path, typer.Option("--output", help="path without an ending; .json and .svg are written")],
    reports: Annotated[
        list[Path] | None, typer.Option("--report", help="report.json of an evaluation against the base; one per seed")
    ] = None,
    may_differ: Annotated[list[str] | None, typer.Option("--may_differ", help="a key that may differ")] = None,
    command: Annotated[str | None, typer.Option("--command", help="the command that made the runs")] = None,
    machine: Annotated[str | None, typer.Option("--machine", help="where they were made")] = None,
    learned: Annotated[str | None, typer.Option("--learned", help="what was learned, in a sentence")] = None,
) -> None:
    """Held-out accuracy with intervals, KL wherever it acts, pass@k, and the last validation against the first.

    Command, machine and sentence stay as OUTPUT.json has them where they are not given.
    """
    with reported_errors():
        result = learning(runs, reports or (), may_differ or ())
        output.parent.mkdir(parents=True, exist_ok=True)
        file = output.with_suffix(".json")
        kept = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        given = {"command": command, "machine": machine, "learned": learned}
        notes = {name: kept.get(name, "") if value is None else value for name, value in given.items()}
        file.write_text(json.dumps({**notes, **asdict(result)}, indent=1) + "\n", encoding="utf-8")
        draw(result, output.with_suffix(".svg"))
        print(f"wrote {relative_to_cwd(file.absolute())} and {relative_to_cwd(output.with_suffix('.svg').absolute())}")
    for curve in result.curves:
        for note in curve.notes:
            print(f"note: {curve.run}: {note}", file=sys.stderr)


if __name__ == "__main__":
    app()
