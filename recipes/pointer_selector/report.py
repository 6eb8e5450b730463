"""The table and the figure of a sweep, from the results of its trials."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from recipes.statistics import mean_over_seeds

Entries = Mapping[str, Sequence[Mapping[str, Any]]]
"""Results of `sweep.run` by arm, one a seed."""
Baselines = Mapping[str, Mapping[str, float]]
"""Accuracy by name and number of shots."""
MeanInterval = tuple[float, float | None]
"""Mean and half-width of its 95% interval over seeds; no width where the seeds allow none."""
VALIDATION, TRAIN = "val-core/pointer_selector/accuracy/mean", "train-core/pointer_selector/accuracy/mean"


def mean_interval(values: Sequence[float]) -> MeanInterval:
    interval = mean_over_seeds(values)
    return interval.value, None if interval.low is None else interval.high - interval.value


def over_shots(entry: Mapping[str, Any], part: str = "test") -> float:
    """Mean accuracy over the numbers of shots."""
    return float(np.mean(list(entry[part].values())))


def paired_over_seeds(arms: Entries, a: str, b: str) -> MeanInterval | None:
    """`a` minus `b` on test, the mean over shots, seed by seed; None without seeds in common."""
    ours, theirs = ({entry["seed"]: over_shots(entry) for entry in arms.get(name, ())} for name in (a, b))
    seeds = sorted(set(ours) & set(theirs))
    return mean_interval([ours[seed] - theirs[seed] for seed in seeds]) if seeds else None


def summary(arms: Entries, against: str) -> list[dict[str, Any]]:
    """One row an arm: [mean, 95% half-width over seeds], and the values of the seeds.

    `difference` is the arm minus `against` on test, paired by seed.
    """
    rows = []
    for arm, entries in arms.items():
        row: dict[str, Any] = {"arm": arm, "seeds": [entry["seed"] for entry in entries]}
        row["test"] = {s: mean_interval([entry["test"][s] for entry in entries]) for s in entries[0]["test"]}
        for name, part in {"mean": "test", "validation": "validation", "last_epoch": "test_of_last_epoch"}.items():
            row[name] = mean_interval([over_shots(entry, part) for entry in entries])
        row["difference"] = paired_over_seeds(arms, arm, against) if arm != against else None
        row["by_seed"] = {part: [round(over_shots(e, part), 5) for e in entries] for part in ("validation", "test")}
        row["best"] = [f"{entry['best']['phase']} {entry['best']['epoch']}" for entry in entries]
        row["cpu_seconds"] = [entry["cpu_seconds"] for entry in entries]
        rows.append(row)
    return rows


def curves(arms: Entries) -> dict[str, list[dict[str, Any]]]:
    """The epochs of each arm's first seed: loss, KL, validation, and the rest of `sweep.CURVES`, in four digits."""

    def short(epoch: Mapping[str, Any]) -> dict[str, Any]:
        return {k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in epoch.items()}

    return {arm: [short(epoch) for epoch in entries[0]["epochs"]] for arm, entries in arms.items()}


def markdown(rows: Sequence[Mapping[str, Any]], baselines: Baselines, against: str) -> str:
    """The table in percent: mean and half-width of the 95% interval over seeds."""
    shots = list(rows[0]["test"])
    head = ["arm", "seeds", *(f"{s}-shot" for s in shots)]
    head += ["mean", f"minus {against}", "validation", "last epoch", "best"]
    lines = [head, ["---"] * len(head)]
    for name, values in baselines.items():
        cells = [f"{100 * values[s]:.1f}" if s in values else "" for s in shots]
        mean = f"{100 * np.mean([values[s] for s in shots]):.1f}" if all(cells) else ""
        lines.append([name, "", *cells, mean, "", "", "", ""])
    for row in rows:
        cells = [row["arm"], str(len(row["seeds"])), *(_percent(row["test"][s]) for s in shots)]
        cells += [_percent(row["mean"]), _percent(row["difference"], sign=True), _percent(row["validation"])]
        lines.append([*cells, _percent(row["last_epoch"]), ", ".join(row["best"])])
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def compact_json(content: Mapping[str, Any]) -> str:
    """JSON with one line for each entry of its lists and mappings, so that changes of a result show line by line."""

    def block(value: Any) -> str:
        if isinstance(value, list):
            return "[\n  " + ",\n  ".join(map(json.dumps, value)) + "\n ]"
        if isinstance(value, dict):
            return "{\n  " + ",\n  ".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in value.items()) + "\n }"
        return json.dumps(value)

    return "{\n " + ",\n ".join(f"{json.dumps(name)}: {block(value)}" for name, value in content.items()) + "\n}\n"


def _percent(value: MeanInterval | None, sign: bool = False) -> str:
    if value is None:
        return ""
    mean = f"{100 * value[0]:{'+' if sign else ''}.1f}"
    return mean if value[1] is None else f"{mean} ± {100 * value[1]:.1f}"


def write(arms: Entries, baselines: Baselines, against: str, command: str, test_queries: int, out: Path) -> None:
    """Write sweep.json, sweep.md and sweep.svg into the folder `out`.

    Args:
        against: the arm that the others are compared with.
        command: what made the results.
    """
    rows = summary(arms, against)
    content = {"command": command, "test_queries": test_queries, "baselines": baselines, "arms": rows}
    content["epochs_of_first_seed"] = curves(arms)
    out.mkdir(parents=True, exist_ok=True)
    (out / "sweep.json").write_text(compact_json(content), encoding="utf-8")
    (out / "sweep.md").write_text(f"Made by `{command}`.\n\n{markdown(rows, baselines, against)}", encoding="utf-8")
    figure(arms, baselines, against, out / "sweep.svg")


def figure(arms: Entries, baselines: Baselines, against: str, path: Path) -> None:
    """Three panels: accuracy by shots, the mean accuracy of every arm, training and validation by epoch."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams |= {"svg.hashsalt": "pointer_selector", "svg.fonttype": "none"}  # text as text, not as paths
    import matplotlib.pyplot as plt

    rows = summary(arms, against)
    factor = against.split("/")[0]
    fig, (left, middle, right) = plt.subplots(1, 3, figsize=(17, max(5.0, 0.24 * len(rows))), layout="constrained")
    for name, values in baselines.items():
        at, height = [int(s) for s in values], [100 * v for v in values.values()]
        left.plot(at, height, "--", color="0.6", lw=1)
        left.annotate(name, (at[-1], height[-1]), xytext=(4, 0), textcoords="offset points", fontsize=8, color="0.4")
    for number, row in enumerate(rows):
        name = row["arm"]
        shots = [int(s) for s in row["test"]]
        if name.startswith(f"{factor}/"):
            bars = [(100 * mean, 100 * (half or 0.0)) for mean, half in row["test"].values()]
            left.errorbar(shots, *zip(*bars, strict=True), marker="o", capsize=3, label=name.removeprefix(f"{factor}/"))
            _draw_curves(right, arms[name], f"C{number}", name.removeprefix(f"{factor}/"))
        mean, half = row["mean"]
        color = "C1" if any(best.startswith("grpo") for best in row["best"]) else "C0"
        place = len(rows) - number
        middle.errorbar(100 * mean, place, xerr=100 * (half or 0.0), fmt="o", color=color, capsize=2, ms=4)
    left.set_xticks(sorted({int(s) for row in rows for s in row["test"]}))
    left.set(xlabel="shots", ylabel="right answers on test, %", title="by shots; bars: 95% over seeds")
    left.legend(fontsize=8)
    middle.set_yticks(range(len(rows), 0, -1), [row["arm"] for row in rows], fontsize=7)
    middle.set(xlabel="right answers on test, mean over shots, %", title="every arm; orange: best epoch in GRPO")
    middle.grid(axis="x", alpha=0.3)
    right.set(xlabel="epoch of the arm's last phase", ylabel="right answers, %", title="validation; dotted: training")
    right.legend(fontsize=8)
    fig.savefig(path, metadata={"Date": None})
    plt.close(fig)


def _draw_curves(axes: Any, entries: Sequence[Mapping[str, Any]], color: str, name: str) -> None:
    """Validation and training accuracy by epoch, mean over the seeds as far as all of them ran."""
    runs = [[epoch for epoch in entry["epochs"] if epoch["epoch"] or epoch is entry["epochs"][0]] for entry in entries]
    length = min(map(len, runs))
    for metric, style in ((VALIDATION, "-"), (TRAIN, ":")):
        values = [[100 * epoch[metric] for epoch in run[:length] if metric in epoch] for run in runs]
        if all(len(row) == length for row in values):
            axes.plot(range(length), np.mean(values, axis=0), style, color=color, label=name if style == "-" else None)
