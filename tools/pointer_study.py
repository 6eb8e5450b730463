"""Train variants (arms) of the pointer selector's recipe, several seeds each; write sweep.json, sweep.md and sweep.svg.

Every arm and seed is a run of the training command in an experiment of its own; one that is finished is not trained
again. `python -m tools.pointer_study --only 'main/*' --seeds 5`
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import shlex
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from fnmatch import fnmatch
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from recipes.drawing import STYLE, markdown
from recipes.errors import RecipeError, reported_errors
from recipes.paths import checkpoint_dir, relative_to_cwd, run_dir
from recipes.pointer_selector import cli
from recipes.pointer_selector.config import resolve
from recipes.statistics import mean_over_seeds
from recipes.yaml_text import dump, read

ARMS: dict[str, dict[str, Any]] = read(Path(__file__).with_suffix(".yaml"))
BASELINES = ("random", "no examples", "nearest")
VALIDATION = "val-core/pointer_selector/accuracy/mean"


def main(
    settings: Annotated[list[str] | None, typer.Argument(help="key=value, what the arms vary around")] = None,
    only: Annotated[str, typer.Option(help="arms to train and show, as patterns, such as 'main/*|GRPO lr/*'")] = "*",
    seeds: Annotated[int, typer.Option(help="seeds of every arm, from 1 on")] = 3,
    against: Annotated[str, typer.Option(help="the arm that the others are compared with")] = "main/recipe",
    jobs: Annotated[int, typer.Option(help="runs at once")] = 2,
    out: Annotated[Path | None, typer.Option(help="where the results go; default: artifacts/runs/study")] = None,
) -> None:
    """Train the arms that are missing, then write the table, its figures and a plot."""
    with reported_errors():
        names = [name for name in ARMS if any(fnmatch(name, pattern) for pattern in only.split("|"))]
        if against not in names:
            raise RecipeError(f"{against!r} is not among the arms of --only", where="--against", fix="name one of them")
        starts = dict.fromkeys(ARMS[name]["start"] for name in names if "start" in ARMS[name])
        train, numbers = partial(run, settings or []), range(1, 1 + seeds)
        results: dict[str, dict[str, Any]] = {}  # by experiment, which arms with the same settings share
        for stage in (starts, names):  # an arm that others start from is trained before them
            trials = {experiment(settings or [], name, seed): (name, seed) for name in stage for seed in numbers}
            with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
                results |= zip(trials, pool.map(train, trials.values()), strict=True)
        arms = {name: [results[experiment(settings or [], name, seed)] for seed in numbers] for name in names}
        target = out or run_dir("study")
        words = [*(settings or []), "--only", only, "--seeds", str(seeds), "--against", against]
        command = shlex.join(["python", "-m", "tools.pointer_study", *words, "--out", str(relative_to_cwd(target))])
        write({"command": command, **summary(arms, against)}, against, target)


def run(settings: Sequence[str], trial: tuple[str, int]) -> dict[str, Any]:
    """Train an arm with a seed, and return its summary.json with the metrics of its epochs."""
    arm, seed = trial
    name = experiment(settings, arm, seed)
    words, preset = arguments(settings, arm, seed, name)
    cli.train(resolve(words, preset=preset), Console(file=StringIO()))
    summary: dict[str, Any] = json.loads((run_dir(name) / "summary.json").read_text(encoding="utf-8"))
    return {**summary, "epochs": epochs((run_dir(name) / "metrics.jsonl").read_text(encoding="utf-8").splitlines())}


def arguments(settings: Sequence[str], arm: str, seed: int, name: str) -> tuple[list[str], str | None]:
    """Return an arm's arguments and preset."""
    own = dict(ARMS[arm])
    preset, start = own.pop("preset", None), own.pop("start", None)
    if start:
        own["trainer.start_from"] = checkpoint_dir(experiment(settings, start, seed))
    own |= {"trainer.seed": seed, "trainer.experiment_name": name}
    values = dict(setting.split("=", 1) for setting in settings) | own
    return [f"{key}={value}" for key, value in values.items()], preset


def experiment(settings: Sequence[str], arm: str, seed: int) -> str:
    """Return a trial's experiment name, a digest of its settings: arms with the same settings share it."""
    words, preset = arguments(settings, arm, seed, "study")
    recipe = dump(resolve(words, preset=preset).model_dump())
    return f"study_{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"


def epochs(history: Iterable[str]) -> list[dict[str, Any]]:
    """Return one mapping per epoch: its validation, and the means of its updates' metrics."""
    found: list[dict[str, Any]] = []
    updates: dict[str, list[float]] = {}
    for line in history:
        data = json.loads(line)["data"]
        if "training/phase" in data:
            means = {key: float(np.mean(values)) for key, values in updates.items()}
            found.append({k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in {**means, **data}.items()})
            updates = {}
        else:
            for key, value in data.items():
                updates.setdefault(key, []).append(value)
    return found


def summary(arms: Mapping[str, Sequence[Mapping[str, Any]]], against: str) -> dict[str, Any]:
    """Return the baselines, one row per arm (means and half-widths over its seeds), and the first seeds' epochs."""
    rows = []
    means = {
        name: [np.mean(list(each["accuracy"]["selector"].values())) for each in runs] for name, runs in arms.items()
    }
    for name, runs in arms.items():
        test = [each["accuracy"]["selector"] for each in runs]
        gains = [ours - theirs for ours, theirs in zip(means[name], means[against], strict=True)]
        row = {
            "arm": name,
            "seeds": len(runs),
            "test": {shots: interval([each[shots] for each in test]) for shots in test[0]},
            "mean": interval(means[name]),
            "validation": interval([each["best"]["value"] for each in runs]),
            "difference": interval(gains) if name != against else None,
            "best": [f"{each['best']['phase']} {each['best']['epoch']}" for each in runs],
        }
        rows.append(row)
    first = {name: runs[0] for name, runs in arms.items()}
    baselines = {name: first[against]["accuracy"][name] for name in BASELINES if name in first[against]["accuracy"]}
    return {
        "baselines": baselines,
        "arms": rows,
        "epochs_of_first_seed": {n: each["epochs"] for n, each in first.items()},
    }


def interval(values: Sequence[float]) -> tuple[float, float | None]:
    """Return the mean over seeds and the half-width of its 95% interval."""
    over = mean_over_seeds(values)
    return over.value, None if over.high is None else over.high - over.value


def write(results: Mapping[str, Any], against: str, out: Path) -> None:
    """Write the results as JSON, as a table and as a plot."""

    def percent(value: Sequence[float | None] | None, sign: str = "") -> str:
        mean, half = value or (None, None)
        return "" if mean is None else f"{100 * mean:{sign}.1f}" + ("" if half is None else f" ± {100 * half:.1f}")

    rows = results["arms"]
    shots = list(rows[0]["test"])
    head = ["arm", "seeds", *(f"{s}-shot" for s in shots), "mean", f"minus {against}", "validation", "best"]
    lines = []
    for name, of_name in results["baselines"].items():
        means = [percent((value, None)) for value in (*of_name.values(), np.mean(list(of_name.values())))]
        lines.append([name, "", *means, "", "", ""])
    for row in rows:
        cells = [*(percent(row["test"][s]) for s in shots), percent(row["mean"]), percent(row["difference"], "+")]
        lines.append([row["arm"], str(row["seeds"]), *cells, percent(row["validation"]), ", ".join(row["best"])])
    out.mkdir(parents=True, exist_ok=True)
    (out / "sweep.json").write_text(json.dumps(results) + "\n", encoding="utf-8")
    (out / "sweep.md").write_text(f"Made by `{results['command']}`.\n\n{markdown(head, lines)}\n", encoding="utf-8")
    plot(results, out / "sweep.svg")


def plot(results: Mapping[str, Any], path: Path) -> None:
    """Draw accuracy by shots, and validation by epoch of each arm's last phase with the first seed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    with pyplot.rc_context({**STYLE, "svg.hashsalt": "pointer_selector"}):
        figure, (left, right) = pyplot.subplots(1, 2, figsize=(12, 5))
        for name, values in results["baselines"].items():
            left.plot(list(values), [100 * value for value in values.values()], "--", color="0.6")
            left.annotate(name, (list(values)[-1], 100 * list(values.values())[-1]), fontsize=8, color="0.4")
        for row in results["arms"]:
            mean, half = zip(*((100 * mean, 100 * (half or 0.0)) for mean, half in row["test"].values()), strict=True)
            left.errorbar(list(row["test"]), mean, half, marker="o", capsize=3)
            of_arm = results["epochs_of_first_seed"][row["arm"]]
            curve = [
                100 * each[VALIDATION] for each in of_arm if each["training/phase"] == of_arm[-1]["training/phase"]
            ]
            right.plot(curve, label=row["arm"])
        left.set(xlabel="shots", ylabel="right answers on test, %; bars: 95% over seeds")
        right.set(xlabel="epoch of the last phase", ylabel="validation, %")
        right.legend(fontsize=7)
        figure.savefig(path, metadata={"Date": None})
        pyplot.close(figure)


if __name__ == "__main__":
    typer.run(main)
