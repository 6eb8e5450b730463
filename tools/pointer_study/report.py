"""The table and the figure of a sweep, from the results of its trials."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from recipes import drawing
from recipes.statistics import mean_over_seeds
from tools.pointer_study.sweep import TrialResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Entries = Mapping[str, Sequence[TrialResult]]
"""Results by arm, one a seed."""
Baselines = Mapping[str, Mapping[str, float]]
"""Accuracy by name and number of shots."""
MeanInterval = tuple[float, float | None]
"""Mean and half-width of its 95% interval over seeds; no width where the seeds allow none."""
VALIDATION, TRAIN = "val-core/pointer_selector/accuracy/mean", "train-core/pointer_selector/accuracy/mean"


@dataclass(frozen=True)
class Row:
    """One arm: means over its seeds, the values of each seed, and how each seed went."""

    arm: str
    seeds: list[int]
    test: dict[str, MeanInterval]
    mean: MeanInterval
    validation: MeanInterval
    last_epoch: MeanInterval
    difference: MeanInterval | None  # minus the arm that the others are compared with, on test, paired by seed
    by_seed: dict[str, list[float]]
    best: list[str]
    cpu_seconds: list[float]


def mean_interval(values: Sequence[float]) -> MeanInterval:
    """Return the mean over seeds and the half-width of its interval."""
    interval = mean_over_seeds(values)
    return interval.value, None if interval.high is None or interval.low is None else interval.high - interval.value


def over_shots(values: Mapping[str, float]) -> float:
    """Return the mean over the numbers of shots."""
    return float(np.mean(list(values.values())))


def paired_over_seeds(arms: Entries, a: str, b: str) -> MeanInterval | None:
    """Return `a` minus `b` on test, the mean over shots, seed by seed; None without seeds in common."""
    ours, theirs = ({entry.seed: over_shots(entry.test) for entry in arms.get(name, ())} for name in (a, b))
    seeds = sorted(set(ours) & set(theirs))
    return mean_interval([ours[seed] - theirs[seed] for seed in seeds]) if seeds else None


def summary(arms: Entries, against: str) -> list[Row]:
    """Return one row an arm; `against` is the arm that the others are compared with."""
    return [
        Row(
            arm=arm,
            seeds=[entry.seed for entry in entries],
            test={s: mean_interval([entry.test[s] for entry in entries]) for s in entries[0].test},
            mean=mean_interval([over_shots(entry.test) for entry in entries]),
            validation=mean_interval([over_shots(entry.validation) for entry in entries]),
            last_epoch=mean_interval([over_shots(entry.test_of_last_epoch) for entry in entries]),
            difference=paired_over_seeds(arms, arm, against) if arm != against else None,
            by_seed={
                "validation": [round(over_shots(entry.validation), 5) for entry in entries],
                "test": [round(over_shots(entry.test), 5) for entry in entries],
            },
            best=[entry.best for entry in entries],
            cpu_seconds=[entry.cpu_seconds for entry in entries],
        )
        for arm, entries in arms.items()
    ]


def curves(arms: Entries) -> dict[str, list[dict[str, Any]]]:
    """Return the epochs of each arm's first seed: the metrics of `sweep.CURVES`, in four digits."""

    def short(epoch: Mapping[str, Any]) -> dict[str, Any]:
        return {k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in epoch.items()}

    return {arm: [short(epoch) for epoch in entries[0].epochs] for arm, entries in arms.items()}


def markdown(rows: Sequence[Row], baselines: Baselines, against: str) -> str:
    """Return the table in percent: mean and half-width of the 95% interval over seeds."""
    shots = list(rows[0].test)
    head = ["arm", "seeds", *(f"{s}-shot" for s in shots)]
    head += ["mean", f"minus {against}", "validation", "last epoch", "best"]
    lines = []
    for name, values in baselines.items():
        cells = [f"{100 * values[s]:.1f}" if s in values else "" for s in shots]
        mean = f"{100 * over_shots({s: values[s] for s in shots}):.1f}" if all(cells) else ""
        lines.append([name, "", *cells, mean, "", "", "", ""])
    for row in rows:
        cells = [row.arm, str(len(row.seeds)), *(_percent(row.test[s]) for s in shots)]
        cells += [_percent(row.mean), _percent(row.difference, sign=True), _percent(row.validation)]
        lines.append([*cells, _percent(row.last_epoch), ", ".join(row.best)])
    return drawing.markdown(head, lines) + "\n"


def _percent(value: MeanInterval | None, sign: bool = False) -> str:
    if value is None:
        return ""
    mean = f"{100 * value[0]:{'+' if sign else ''}.1f}"
    return mean if value[1] is None else f"{mean} ± {100 * value[1]:.1f}"


def write(arms: Entries, baselines: Baselines, against: str, command: str, test_queries: int, out: Path) -> None:
    """Write sweep.json, sweep.md and sweep.svg into the folder `out`.

    Args:
        arms: the results.
        baselines: accuracies without a trained policy.
        against: the arm that the others are compared with.
        command: what made the results.
        test_queries: how many queries the accuracies are over.
        out: is made where it does not exist.
    """
    rows = summary(arms, against)
    out.mkdir(parents=True, exist_ok=True)
    lists = {"arms": [asdict(row) for row in rows], "epochs_of_first_seed": curves(arms)}
    body = {"command": command, "test_queries": test_queries, "baselines": baselines} | lists
    (out / "sweep.json").write_text(json.dumps(body) + "\n", encoding="utf-8")
    (out / "sweep.md").write_text(f"Made by `{command}`.\n\n{markdown(rows, baselines, against)}", encoding="utf-8")
    figure(arms, rows, baselines, against.split("/")[0], out / "sweep.svg")


def figure(arms: Entries, rows: Sequence[Row], baselines: Baselines, study: str, path: Path) -> None:
    """Draw three panels: accuracy by shots, the mean accuracy of every arm, training and validation by epoch."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams |= {"svg.hashsalt": "pointer_selector", "svg.fonttype": "none"}  # text as text, not as paths
    import matplotlib.pyplot as plt

    fig, (left, middle, right) = plt.subplots(1, 3, figsize=(17, max(5.0, 0.24 * len(rows))), layout="constrained")
    for name, values in baselines.items():
        at, height = [int(s) for s in values], [100 * v for v in values.values()]
        left.plot(at, height, "--", color="0.6", lw=1)
        left.annotate(name, (at[-1], height[-1]), xytext=(4, 0), textcoords="offset points", fontsize=8, color="0.4")
    for number, row in enumerate(rows):
        if row.arm.startswith(f"{study}/"):
            label = row.arm.removeprefix(f"{study}/")
            bars = [(100 * mean, 100 * (half or 0.0)) for mean, half in row.test.values()]
            shots = [int(s) for s in row.test]
            left.errorbar(shots, *zip(*bars, strict=True), marker="o", capsize=3, label=label)
            _draw_curves(right, arms[row.arm], f"C{number}", label)
        mean, half = row.mean
        color = "C1" if any(best.startswith("grpo") for best in row.best) else "C0"
        place = len(rows) - number
        middle.errorbar(100 * mean, place, xerr=100 * (half or 0.0), fmt="o", color=color, capsize=2, ms=4)
    left.set_xticks(sorted({int(s) for row in rows for s in row.test}))
    left.set(xlabel="shots", ylabel="right answers on test, %", title="by shots; bars: 95% over seeds")
    left.legend(fontsize=8)
    middle.set_yticks(range(len(rows), 0, -1), [row.arm for row in rows], fontsize=7)
    middle.set(xlabel="right answers on test, mean over shots, %", title="every arm; orange: best epoch in GRPO")
    middle.grid(axis="x", alpha=0.3)
    right.set(xlabel="epoch of the arm's last phase", ylabel="right answers, %", title="validation; dotted: training")
    right.legend(fontsize=8)
    fig.savefig(path, metadata={"Date": None})
    plt.close(fig)


def _draw_curves(axes: Axes, entries: Sequence[TrialResult], color: str, name: str) -> None:
    """Draw accuracy by epoch of the last phase, mean over the seeds as far as all of them ran."""
    runs = [[epoch for epoch in entry.epochs if epoch["phase"] == entry.epochs[-1]["phase"]] for entry in entries]
    length = min(map(len, runs))
    for metric, style in ((VALIDATION, "-"), (TRAIN, ":")):
        values = [[100 * epoch[metric] for epoch in run[:length] if metric in epoch] for run in runs]
        if all(len(row) == length for row in values):
            axes.plot(range(length), np.mean(values, axis=0), style, color=color, label=name if style == "-" else None)
