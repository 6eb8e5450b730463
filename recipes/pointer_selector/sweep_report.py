"""The sweep's table and figure, from its results; and the sentence that answers whether GRPO adds anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from recipes.pointer_selector.statistics import mean_interval

MAIN = "main/"
RCE, LONG, TUNED = "main/RCE", "main/RCE, as many epochs", "main/RCE, as many epochs, tuned"
SHARP = "main/RCE, as many epochs, tuned, sharper"
BOTH, ALONE = "main/RCE + GRPO", "main/GRPO without warm-up"
PAIRS = ((BOTH, RCE), (BOTH, LONG), (BOTH, TUNED), (BOTH, SHARP), (BOTH, ALONE))
AGAINST_NEAREST = (BOTH, RCE, TUNED, SHARP)
NEAREST = "nearest"


def over_shots(entry: dict[str, Any], part: str) -> float:
    """Mean accuracy over the numbers of shots."""
    return float(np.mean(list(entry[part].values())))


def summary(arms: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """One row an arm: mean and 95% half-width over seeds, on test by shots and over all of them, and on validation."""
    rows = []
    for arm, entries in arms.items():
        shots = list(entries[0]["test"])
        row: dict[str, Any] = {"arm": arm, "seeds": len(entries)}
        row["test"] = {s: mean_interval([entry["test"][s] for entry in entries]) for s in shots}
        row["test_mean"] = mean_interval([over_shots(entry, "test") for entry in entries])
        row["validation_mean"] = mean_interval([over_shots(entry, "validation") for entry in entries])
        row["epoch"] = [entry["best"]["epoch"] for entry in entries]
        row["best_in_grpo"] = sum(entry["best"]["phase"] == "grpo" for entry in entries)
        rows.append(row)
    return rows


def comparisons(arms: dict[str, list[dict[str, Any]]], baselines: dict[str, dict[str, float]]) -> list[dict[str, Any]]:
    """The differences that answer what GRPO adds: between arms, and to the nearest neighbours."""
    pairs = [paired_over_seeds(arms, a, b) for a, b in PAIRS]
    if NEAREST in baselines:
        same_for_all = {"test": baselines[NEAREST]}
        for name in AGAINST_NEAREST:
            fixed = [{**same_for_all, "seed": entry["seed"]} for entry in arms.get(name, [])]
            pairs.append(paired_over_seeds({**arms, NEAREST: fixed}, name, NEAREST))
    return [pair for pair in pairs if pair]


def paired_over_seeds(arms: dict[str, list[dict[str, Any]]], a: str, b: str) -> dict[str, Any] | None:
    """`a` minus `b` on test, seed by seed: mean and 95% half-width at each number of shots and over all of them."""
    if a not in arms or b not in arms:
        return None
    left, right = ({entry["seed"]: entry for entry in arms[name]} for name in (a, b))
    seeds = sorted(set(left) & set(right))
    if len(seeds) < 2:
        return None
    shots = list(left[seeds[0]]["test"])
    difference = {s: mean_interval([left[seed]["test"][s] - right[seed]["test"][s] for seed in seeds]) for s in shots}
    whole = mean_interval([over_shots(left[seed], "test") - over_shots(right[seed], "test") for seed in seeds])
    return {"a": a, "b": b, "seeds": len(seeds), "by_shots": difference, "mean": whole}


def markdown(rows: list[dict[str, Any]], baselines: dict[str, dict[str, float]], pairs: list[dict[str, Any]]) -> str:
    """The table of docs/results: test accuracy in percent, mean and half-width of the 95% interval over seeds."""
    shots = list(rows[0]["test"])
    head = ["arm", "seeds", *(f"{s}-shot" for s in shots), "mean", "validation", "best epoch"]
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for name, values in baselines.items():
        cells = [f"{100 * values[s]:.1f}" if s in values else "" for s in shots]
        mean = f"{100 * np.mean([values[s] for s in shots]):.1f}" if all(s in values for s in shots) else ""
        lines.append("| " + " | ".join([name, "", *cells, mean, "", ""]) + " |")
    for row in rows:
        cells = [_percent(row["test"][s]) for s in shots]
        tail = [_percent(row["test_mean"]), _percent(row["validation_mean"]), ", ".join(map(str, row["epoch"]))]
        lines.append("| " + " | ".join([row["arm"], str(row["seeds"]), *cells, *tail]) + " |")
    lines += [
        "",
        "Differences on test in points, paired by seed; intervals are over seeds, on the same queries:",
        "",
    ]
    lines += ["| a | b | " + " | ".join(f"{s}-shot" for s in shots) + " | mean |", "|" + " --- |" * (len(shots) + 3)]
    for pair in pairs:
        cells = [_percent(pair["by_shots"][s], sign=True) for s in shots]
        lines.append("| " + " | ".join([pair["a"], pair["b"], *cells, _percent(pair["mean"], sign=True)]) + " |")
    return "\n".join(lines) + "\n"


def _percent(value: tuple[float, float | None], sign: bool = False) -> str:
    mean, half = value
    shown = f"{100 * mean:+.1f}" if sign else f"{100 * mean:.1f}"
    return shown if half is None else f"{shown} ± {100 * half:.1f}"


def figure(arms: dict[str, list[dict[str, Any]]], baselines: dict[str, dict[str, float]], path: Path) -> None:
    """Three panels: accuracy by shots, the mean accuracy of every arm, training against validation by epoch."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams |= {
        "svg.hashsalt": "pointer_selector",
        "svg.fonttype": "none",
    }  # text as text, not as paths
    import matplotlib.pyplot as plt

    rows = summary(arms)
    height = max(5.0, 0.2 * len(rows))
    fig, (left, middle, right) = plt.subplots(
        1, 3, figsize=(17, height), width_ratios=[1, 1.1, 1], layout="constrained"
    )
    _draw_shots(left, rows, baselines)
    _draw_arms(middle, arms, rows)
    _draw_curves(right, arms)
    fig.savefig(path, metadata={"Date": None})
    plt.close(fig)


def _draw_shots(axes: Any, rows: list[dict[str, Any]], baselines: dict[str, dict[str, float]]) -> None:
    for name, values in baselines.items():
        axes.plot([int(s) for s in values], [100 * v for v in values.values()], "--", color="0.6", lw=1)
        last = list(values)[-1]
        axes.annotate(
            name, (int(last), 100 * values[last]), xytext=(4, 0), textcoords="offset points", fontsize=8, color="0.4"
        )
    for row in (row for row in rows if row["arm"].startswith(MAIN)):
        shots = [int(s) for s in row["test"]]
        means, halves = zip(*row["test"].values(), strict=True)
        axes.errorbar(
            shots,
            [100 * m for m in means],
            [100 * (h or 0.0) for h in halves],
            marker="o",
            capsize=3,
            label=row["arm"][len(MAIN) :],
        )
    axes.set(xlabel="shots", ylabel="right answers on test, %", title="accuracy by shots, mean and interval over seeds")
    axes.set_xticks(sorted({int(s) for row in rows for s in row["test"]}))
    axes.legend(fontsize=8, loc=(0.02, 0.1))  # between random examples and none


def _draw_arms(axes: Any, arms: dict[str, list[dict[str, Any]]], rows: list[dict[str, Any]]) -> None:
    for place, row in enumerate(reversed(rows)):
        mean, half = row["test_mean"]
        color = "C1" if any(entry["best"]["phase"] == "grpo" for entry in arms[row["arm"]]) else "C0"
        axes.errorbar(100 * mean, place, xerr=100 * (half or 0.0), fmt="o", color=color, capsize=2, ms=4)
    axes.set_yticks(range(len(rows)), [row["arm"] for row in reversed(rows)], fontsize=7)
    axes.set(
        xlabel="right answers on test, mean over shots, %", title="every arm; orange where the best epoch was of GRPO"
    )
    axes.grid(axis="x", alpha=0.3)


def _draw_curves(axes: Any, arms: dict[str, list[dict[str, Any]]]) -> None:
    for color, arm in enumerate(name for name in (TUNED, ALONE, BOTH) if name in arms):
        for part, style in (("train", ":"), ("validation", "-")):
            curves = [entry["last_phase"][part] for entry in arms[arm]]
            length = min(map(len, curves))
            mean = 100 * np.mean([curve[:length] for curve in curves], axis=0)
            axes.plot(
                range(length),
                mean,
                style,
                color=f"C{color}",
                label=f"{arm[len(MAIN) :]}, {'training' if part == 'train' else part}",
            )
    axes.set(
        xlabel="epochs of the arm's last phase",
        ylabel="right answers, %",
        title="training and validation by epoch",
    )
    axes.legend(fontsize=8)
