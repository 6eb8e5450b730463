"""Learning curves of runs that differ in their seed: means, intervals and a figure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recipes.drawing import BAD, BLUE, SLATE, STYLE, draw_means, interval_ends
from recipes.errors import RecipeError
from recipes.runs.validations import Curve, learning_curve
from recipes.statistics import Interval, mean_over_seeds

KL_LABELS = {"kl_reward": "KL to the reference, in the reward", "kl_loss": "KL to the reference, in the loss"}


@dataclass(frozen=True)
class BeforeAfter:
    """One quantity of the base model and of the trained ones, and trained minus base."""

    before: Interval
    after: Interval
    change: Interval


@dataclass(frozen=True)
class Learning:
    """Several runs that differ in their seed only.

    Attributes:
        mean: step -> mean accuracy over the runs, Student's t interval; steps that every run validated.
        change: last minus first of those steps, one value per run.
        pass_at_k: k -> pass@k before and after, each the mean over the runs; empty where no report was given.
    """

    curves: list[Curve]
    mean: dict[int, Interval]
    change: Interval
    pass_at_k: dict[int, BeforeAfter] = field(default_factory=dict)


def learning(runs: Sequence[Path], reports: Sequence[Path] = ()) -> Learning:
    """The curves of runs that differ in their seed.

    Args:
        runs: folders such as `artifacts/runs/<experiment>`, with `metrics.jsonl` and `validation/<step>.jsonl`.
        reports: `report.json` of evaluations that compare a run's checkpoint with its base model.

    Raises:
        RecipeError: a run with fewer than two validations, or runs without two common ones.
    """
    curves = [learning_curve(run) for run in runs]
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


def pass_at_k(reports: Sequence[Path]) -> dict[int, BeforeAfter]:
    """pass@k before and after; of several reports the mean over seeds (Student's t), of one its own intervals.

    Raises:
        RecipeError: a report that compares no two models, or none at these k.
    """
    entries: dict[int, list[dict[str, Any]]] = {}
    for report in reports:
        comparison = json.loads(report.read_text(encoding="utf-8")).get("comparison") or {}
        if not comparison.get("pass_at_k"):
            raise RecipeError(
                "the report has no pass@k of two models",
                where=str(report),
                fix="python scripts/eval.py TASK --model_path TRAINED --base_model_path BASE --rollout_n 16",
            )
        for entry in comparison["pass_at_k"]:
            entries.setdefault(entry["k"], []).append(entry)

    def over_questions(interval: dict[str, Any]) -> Interval:
        return Interval(interval["value"], interval["low"], interval["high"], "over questions")

    def over_runs(of: list[dict[str, Any]], name: str) -> Interval:
        return over_questions(of[0][name]) if len(of) == 1 else mean_over_seeds([each[name]["value"] for each in of])

    return {
        k: BeforeAfter(over_questions(of[0]["base"]), over_runs(of, "trained"), over_runs(of, "difference"))
        for k, of in sorted(entries.items())
        if len(of) == len(reports)
    }


def draw(result: Learning, path: Path) -> None:
    """Draw accuracy and KL by step as SVG: one run with its intervals, several as mean and band over thin lines.

    The same curves give the same file.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    places = [name for name in KL_LABELS if any(entry.get(name) for curve in result.curves for entry in curve.training)]
    layout = [["accuracy"], ["kl"]] if places else [["accuracy"]]
    if result.pass_at_k:
        layout = [[*row, "pass@k"] for row in layout]
    with mpl.rc_context({**STYLE, "svg.hashsalt": "learning"}):
        figure = Figure(figsize=(10.6 if result.pass_at_k else 7.2, 5.0 if places else 3.6))
        heights, widths = ([3, 1.2] if places else [1]), ([2, 1] if result.pass_at_k else [1])
        axes: dict[str, Any] = figure.subplot_mosaic(layout, height_ratios=heights, width_ratios=widths)
        _draw_accuracies(axes["accuracy"], result)
        for name in places:
            for curve in result.curves:
                points = [(entry["step"], entry[name]) for entry in curve.training if name in entry]
                label = KL_LABELS[name] if curve is result.curves[0] else None
                style = "-" if name == "kl_reward" else "--"
                axes["kl"].plot(*zip(*points, strict=True), style, color=BAD, label=label)
        if places:
            axes["kl"].sharex(axes["accuracy"])
            axes["accuracy"].tick_params(labelbottom=False)
            axes["kl"].set_ylabel("nats")
            axes["kl"].legend(loc="upper left")
        axes["kl" if places else "accuracy"].set_xlabel("step")
        if result.pass_at_k:
            _draw_pass_at_k(axes["pass@k"], result.pass_at_k)
        figure.savefig(path, format="svg", metadata={"Date": None})


def _draw_pass_at_k(axes: Any, points: dict[int, BeforeAfter]) -> None:
    for name, color in (("before", SLATE), ("after", BLUE)):
        curve = {k: getattr(point, name) for k, point in points.items()}
        values = [interval.value for interval in curve.values()]
        axes.plot(list(curve), values, color=color, marker="o", label=f"{name} training")
        axes.fill_between(list(curve), *interval_ends(curve), color=color, alpha=0.15)
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(points), [str(k) for k in points])
    axes.set(ylim=(0, 1), xlabel="k", ylabel="pass@k, temperature 1")
    axes.legend(loc="lower right")


def _draw_accuracies(axes: Any, result: Learning) -> None:
    several = len(result.curves) > 1
    for curve in result.curves:
        first = curve is result.curves[0]
        steps, scores = ([entry[name] for entry in curve.training] for name in ("step", "score"))
        label = "score of the training responses (temperature 1)" if first else None
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
    axes.set(ylim=(0, 1), ylabel="accuracy")
    axes.legend(loc="lower right")
