"""The learning curve of a run, from what the run wrote: validation accuracy with intervals, and first against last."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from recipes.errors import RecipeError
from recipes.evaluation.statistics import mcnemar, mean_with_interval
from recipes.monitor.metrics import read_history

TRAINING = {
    "score": "critic/score/mean",
    "entropy": "actor/entropy",
    "kl": "actor/reward_kl_penalty",
    "grad_norm": "actor/grad_norm",
    "seconds": "timing_s/step",
}


def learning_curve(run: Path) -> dict[str, Any]:
    """Validation accuracy at each validated step, the training metrics of each step, and the paired comparison.

    Args:
        run: `artifacts/runs/<experiment>`, with `metrics.jsonl` and `validation/<step>.jsonl`.

    Returns:
        `validation`: a list of {step, value, low, high} (Wilson 95% intervals); `training`: a list of {step, ...};
        `paired`: last minus first validation on the same prompts: difference with a bootstrap 95% interval, McNemar.

    Raises:
        RecipeError: no validation at all, or only one.
    """
    answers = {int(file.stem): _answers(file) for file in (run / "validation").glob("*.jsonl") if file.stem.isdigit()}
    if len(answers) < 2:
        raise RecipeError(
            f"{len(answers)} validations are there, and a curve needs two",
            where=str(run / "validation"),
            fix="train with VAL_FREQ set to fewer steps than the run has",
        )
    steps = sorted(answers)
    return {
        "validation": [
            {"step": step, **mean_with_interval(list(answers[step].values()), bounds=(0.0, 1.0))} for step in steps
        ],
        "training": [
            {"step": entry.step}
            | {name: entry.data[metric] for name, metric in TRAINING.items() if metric in entry.data}
            for entry in read_history(run / "metrics.jsonl")
            if TRAINING["score"] in entry.data
        ],
        "paired": _paired(answers[steps[0]], answers[steps[-1]]) | {"first": steps[0], "last": steps[-1]},
    }


def draw(curve: dict[str, Any], path: Path) -> None:
    """Draw validation accuracy with its intervals, and the score of the training responses, as SVG."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "learning"  # the same curve gives the same file
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7.2, 3.6), constrained_layout=True)
    axes.plot(
        [entry["step"] for entry in curve["training"]],
        [entry["score"] for entry in curve["training"]],
        color="#b8b8b8",
        linewidth=1.2,
        label="score of the training responses (temperature 1)",
    )
    held_out = curve["validation"]
    values = [entry["value"] for entry in held_out]
    errors = [
        [entry["value"] - entry["low"] for entry in held_out],
        [entry["high"] - entry["value"] for entry in held_out],
    ]
    axes.errorbar(
        [entry["step"] for entry in held_out],
        values,
        yerr=errors,
        color="#1f5fa8",
        marker="o",
        capsize=3,
        label="greedy accuracy on held-out problems, 95% interval",
    )
    axes.set(xlabel="step", ylim=(0, 1))
    axes.grid(alpha=0.25)
    axes.legend(loc="lower right", frameon=False)
    figure.savefig(path, format="svg", metadata={"Date": None})
    pyplot.close(figure)


def _answers(file: Path) -> dict[str, float]:
    """Accuracy by prompt, from one of verl's validation dumps."""
    with file.open(encoding="utf-8") as lines:
        entries = [json.loads(line) for line in lines]
    return {entry["input"]: float(entry["acc"]) for entry in entries}


def _paired(before: dict[str, float], after: dict[str, float]) -> dict[str, Any]:
    common = [prompt for prompt in before if prompt in after]
    changes = [after[prompt] - before[prompt] for prompt in common]
    won, lost = sum(change > 0 for change in changes), sum(change < 0 for change in changes)
    return {
        "problems": len(common),
        "difference": mean_with_interval(changes, bounds=(-1.0, 1.0)),
        "mcnemar": mcnemar(won, lost),
    }
