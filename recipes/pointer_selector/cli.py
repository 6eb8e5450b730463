"""`train_pointer_selector.py [key=value ...]`: resolve, prepare, train, sum up."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from recipes.config import machine
from recipes.config.variables import dry_run
from recipes.paths import checkpoint_dir, run_dir
from recipes.pointer_selector.config import PointerRecipe
from recipes.pointer_selector.resolve import resolve, to_yaml

if TYPE_CHECKING:
    from recipes.pointer_selector.metrics import Sinks
    from recipes.pointer_selector.preparation import Prepared
    from recipes.pointer_selector.progress import Progress
    from recipes.pointer_selector.training import EpochReport


def train(arguments: Sequence[str], console: Console) -> None:
    """Train as the layers say; with DRY_RUN=1 print the resolved recipe and the accounting, and stop."""
    recipe = resolve(arguments)
    from recipes.pointer_selector.preparation import prepare

    if dry_run():
        print(to_yaml(recipe), end="")
        for line in accounting(recipe, prepare(recipe)):
            print(f"# {line}")
        return
    started = time.perf_counter()
    console.print(f"experiment {recipe.trainer.experiment_name}: reading the data")
    prepared = prepare(recipe)
    _show_report(prepared, console)
    for line in accounting(recipe, prepared):
        console.print(line)
    progress = run(recipe, prepared, console)
    summarise(recipe, prepared, progress, time.perf_counter() - started, console)


def accounting(recipe: PointerRecipe, prepared: Prepared) -> list[str]:
    """Queries, groups and updates, in words."""
    from recipes.pointer_selector.rewards import equal_groups, rewards

    train_part = prepared.parts["train"]
    equal = equal_groups(rewards(train_part, recipe.reward), train_part)
    first = f", the first in query {train_part.query_ids[train_part.group_query[equal[0]]]!r}" if len(equal) else ""
    per_epoch = -(-len(train_part) // recipe.data.batch_size)
    return [
        f"queries: {', '.join(f'{len(part):,} {name}' for name, part in prepared.parts.items())}",
        f"training groups: {len(train_part.group_query):,} with {len(train_part.lengths):,} candidates",
        f"groups with equal rewards (advantage 0): {len(equal):,}{first}",
        f"updates: {per_epoch:,} an epoch, at most {per_epoch * (recipe.rce.epochs + recipe.grpo.epochs):,}",
    ]


def run(recipe: PointerRecipe, prepared: Prepared, console: Console) -> Progress:
    """Train, with one line an epoch; leaves checkpoints and metrics in the experiment's folders."""
    from recipes.pointer_selector.machine import device
    from recipes.pointer_selector.training import Trainer

    name = recipe.trainer.experiment_name
    folder = run_dir(name)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(to_yaml(recipe), encoding="utf-8")
    data = {**prepared.report.as_dict(), "dropped": prepared.dropped}
    (folder / "data.json").write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
    chosen = device(recipe.trainer.device)
    console.print(f"training on {chosen.type}; metrics: {_short(folder / 'metrics.jsonl')}")
    sinks = make_sinks(recipe, folder, console)
    try:
        trainer = Trainer(
            recipe,
            prepared.parts,
            prepared.judge,
            checkpoint_dir(name),
            sinks,
            lambda report: _show(report, console),
            chosen,
        )
        return trainer.run()
    finally:
        sinks.close()


def make_sinks(recipe: PointerRecipe, folder: Path, console: Console) -> Sinks:
    """The places for metrics that the recipe names; W&B offline where there is no login.

    A recorder that is not installed is left out, and said so: a run does not depend on it.
    """
    from recipes.pointer_selector.metrics import JsonLines, Sinks, TensorBoard, Wandb

    names = recipe.trainer.logger
    absent = [name for name in ("tensorboard", "wandb") if name in names and not find_spec(name)]
    for name in absent:
        console.print(f"{name} is not installed, so nothing is written for it: pip install {name}")
    sinks = [JsonLines(folder / "metrics.jsonl")] if "file" in names else []
    if "tensorboard" in names and "tensorboard" not in absent:
        sinks.append(TensorBoard(folder / "tensorboard"))
    if "wandb" in names and "wandb" not in absent:
        mode = os.environ.get("WANDB_MODE") or machine.wandb_environment(names).get("WANDB_MODE", "online")
        experiment, project = recipe.trainer.experiment_name, recipe.trainer.project_name
        sinks.append(Wandb(folder, project, experiment, recipe.model_dump(), mode))
    return Sinks(sinks)


def _show_report(prepared: Prepared, console: Console) -> None:
    table = Table(title="logged candidates", show_header=False, title_justify="left", box=None)
    for name, value in [*prepared.report.rows(), *((f"dropped: {k}", f"{v:,}") for k, v in prepared.dropped.items())]:
        table.add_row(name, value)
    console.print(table)


def _show(report: EpochReport, console: Console) -> None:
    m = report.metrics
    shots = {key.rsplit("@", 1)[1]: value for key, value in m.items() if key.startswith("val-core") and "@" in key}
    parts = [f"{report.phase} {report.epoch}/{report.epochs} step {report.step}"]
    parts.append("val " + " ".join(f"{name}-shot {value:.1%}" for name, value in sorted(shots.items())))
    if (
        train_value := next((v for k, v in m.items() if k.startswith("train-core") and k.endswith("/mean")), None)
    ) is not None:
        parts.append(f"train {train_value:.1%}")
    names = {"rce_loss": "loss", "pg_loss": "loss", "kl_loss": "kl", "pg_clipfrac": "clip", "entropy": "entropy"}
    parts += [f"{short} {m[f'actor/{name}']:.3f}" for name, short in names.items() if f"actor/{name}" in m]
    console.print("  ".join(parts) + ("  [bold]best[/]" if report.is_best else ""), highlight=False)
    for finding in report.findings:
        console.print(f"    [yellow]{finding.text}[/]", highlight=False)


def summarise(recipe: PointerRecipe, prepared: Prepared, progress: Progress, seconds: float, console: Console) -> None:
    """Test the best checkpoint and the warm-up against the baselines; print a table and write summary.json."""
    from recipes.pointer_selector.checkpoints import load_policy
    from recipes.pointer_selector.evaluation import baseline_results, policy_results
    from recipes.pointer_selector.machine import memory_peak_mib

    name = recipe.trainer.experiment_name
    folder, shots, test = checkpoint_dir(name), recipe.validation.shots, prepared.parts["test"]
    console.print(f"testing on {len(test):,} queries: the baselines, the warm-up and the best checkpoint ...")
    results = baseline_results(test, prepared.judge, shots)
    marks = {"after RCE": progress.warm_up or progress.best, "best": progress.best}
    for label, mark in marks.items():
        results[label] = policy_results(load_policy(folder / mark.folder)[0], test, prepared.judge, shots)
    table = Table(title=f"right answers on {len(test):,} test queries", title_justify="left")
    for column in ("", *(f"{count}-shot" for count in shots)):
        table.add_column(column, justify="right" if column else "left")
    for label, by_shots in results.items():
        table.add_row(label, *(f"{by_shots[s].correct.mean():.1%}" if s in by_shots else "" for s in shots))
    console.print(table)
    for phase, end in progress.ends.items():
        console.print(f"{phase}: {end}")
    best = progress.best
    console.print(
        f"best: {best.phase} epoch {best.epoch}, {_short(folder / best.folder)}; "
        f"{seconds:.0f} s before the test, {memory_peak_mib():.0f} MiB"
    )
    console.print(f"next: python scripts/eval_pointer_selector.py trainer.experiment_name={name}", highlight=False)
    summary = {
        "best": best.__dict__,
        "ends": progress.ends,
        "seconds": round(seconds, 1),
        "peak_mib": round(memory_peak_mib()),
        "test": {label: {str(s): float(r.correct.mean()) for s, r in by.items()} for label, by in results.items()},
    }
    (run_dir(name) / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")


def _short(path: Path) -> str:
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
