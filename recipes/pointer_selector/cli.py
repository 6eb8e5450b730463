"""The commands of the pointer selector: look at the data, train, evaluate."""

from __future__ import annotations

import os
import resource
import shlex
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from recipes.config.variables import dry_run, not_read
from recipes.errors import reported_errors
from recipes.files import run_lock, write_json
from recipes.paths import checkpoint_dir, relative_to_cwd, run_dir
from recipes.pointer_selector.config import VARIABLES, PointerRecipe, differences, presets, resolve, to_yaml

if TYPE_CHECKING:  # torch is imported when a command starts, so that --help does not wait for it
    from recipes.pointer_selector.evaluation import Evaluation
    from recipes.pointer_selector.preparation import Prepared
    from recipes.pointer_selector.training import EpochReport

Settings = Annotated[list[str] | None, typer.Argument(help="key=value, for instance rce.epochs=3 data.batch_size=4")]
Preset = Annotated[str | None, typer.Option(help=f"settings that lie over the recipe's: {', '.join(presets())}")]


def data_command(settings: Settings = None, preset: Preset = None) -> None:
    """Read and check the recipe's data, and print what it holds; the embedded workload is made if it is not there."""
    with reported_errors():
        recipe = resolve(settings or [], preset=preset)
        from recipes.pointer_selector.preparation import prepare

        _show_data(prepare(recipe), Console(highlight=False, soft_wrap=True))


def train_command(settings: Settings = None, preset: Preset = None) -> None:
    """Train the pointer selector; a run that was interrupted goes on after its last finished phase."""
    console = Console(highlight=False, soft_wrap=True)
    try:
        with reported_errors():
            train(resolve(settings or [], preset=preset), console)
    except KeyboardInterrupt:
        console.out("interrupted: the same command goes on after the last finished phase")
        raise typer.Exit(130) from None


def train(recipe: PointerRecipe, console: Console) -> None:
    """Train the recipe and test its best checkpoint; with DRY_RUN=1 print it with the accounting, and stop."""
    from recipes.pointer_selector.evaluation import evaluate
    from recipes.pointer_selector.policy import choose_device, use_threads
    from recipes.pointer_selector.preparation import prepare
    from recipes.pointer_selector.training import RunLog, Trainer

    use_threads(recipe.trainer.threads)
    if dry_run(os.environ):
        print(to_yaml(recipe), end="")
        for line in accounting(recipe, prepare(recipe)):
            print(f"# {line}")
        return
    started, name = time.perf_counter(), recipe.trainer.experiment_name
    folder, checkpoints = run_dir(name), checkpoint_dir(name)
    for note in not_read(os.environ, VARIABLES):
        console.out(f"note: {note}")
    console.out(f"experiment {name}: reading the data")
    prepared = prepare(recipe)
    _show_data(prepared, console)
    for line in accounting(recipe, prepared):
        console.out(line)
    with run_lock(folder / ".lock", name):
        device = choose_device(recipe.trainer.device)
        trainer = Trainer(recipe, prepared, checkpoints, device)  # refuses another run's folder
        (folder / "config.yaml").write_text(to_yaml(recipe), encoding="utf-8")
        write_json(folder / "data.json", {**prepared.counts, "dropped from training": prepared.dropped})
        console.out(f"training on {device.type}; metrics: {relative_to_cwd(folder / 'metrics.jsonl')}")
        with closing(RunLog(folder, trainer.progress.step)) as log:
            trainer.log, trainer.on_epoch = log.write, lambda report: _show_epoch(report, console)
            progress = trainer.run()
        seconds, best = time.perf_counter() - started, progress.best
        evaluation = evaluate(prepared, checkpoints, recipe.validation.shots)
        _show(evaluation, console)
        peak_mib = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        command = shlex.join(["python", "scripts/eval_pointer_selector.py", *differences(recipe)])
        where = f"{best.phase} epoch {best.epoch}, {relative_to_cwd(checkpoints)}/best"
        for line in (
            *(f"{phase}: {end}" for phase, end in progress.ends.items()),
            f"best: {where}; {seconds:.0f} s before the test, {peak_mib} MiB",
            f"next: {command}",
        ):
            console.out(line)
        run = {"best": asdict(best), "ends": progress.ends, "seconds": round(seconds, 1), "peak_mib": peak_mib}
        write_json(folder / "summary.json", {**run, **evaluation.as_dict()})


def accounting(recipe: PointerRecipe, prepared: Prepared) -> list[str]:
    """Return the numbers of groups and updates, and a note for each weight of the reward that is not read."""
    from recipes.pointer_selector.losses import equal_groups, rewards, unread_weights

    train_part = prepared.parts["train"]
    equal = equal_groups(rewards(train_part, recipe.reward), train_part)
    first = f", the first in query {train_part.query_ids[train_part.group_query[equal[0]]]!r}" if len(equal) else ""
    per_epoch = -(-len(train_part) // recipe.data.batch_size)
    return [
        f"training groups: {len(train_part.group_query):,} with {len(train_part.lengths):,} candidates",
        f"groups with equal rewards (advantage 0): {len(equal):,}{first}",
        f"updates: {per_epoch:,} an epoch, at most {per_epoch * (recipe.rce.epochs + recipe.grpo.epochs):,}",
        *(f"note: {note}" for note in unread_weights(recipe)),
    ]


def _show_epoch(report: EpochReport, console: Console) -> None:
    m = report.metrics
    shots = {key.rsplit("@", 1)[1]: value for key, value in m.items() if key.startswith("val-core") and "@" in key}
    parts = [f"{report.phase} {report.epoch}/{report.epochs} step {report.step}"]
    parts.append("val " + " ".join(f"{name}-shot {value:.1%}" for name, value in sorted(shots.items())))
    on_train = [value for key, value in m.items() if key.startswith("train-core") and key.endswith("/mean")]
    parts += [f"train {value:.1%}" for value in on_train]
    names = {"rce_loss": "loss", "pg_loss": "loss", "kl_loss": "kl", "pg_clipfrac": "clip", "entropy": "entropy"}
    parts += [f"{short} {m[f'actor/{name}']:.3f}" for name, short in names.items() if f"actor/{name}" in m]
    console.out("  ".join([*parts, *(["best"] if report.is_best else [])]))
    for finding in report.findings:
        console.out(f"    {finding}", style="yellow")


def evaluate_command(
    settings: Annotated[list[str] | None, typer.Argument(help="key=value of the recipe that was trained")] = None,
    preset: Preset = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="a checkpoint, or an experiment's folder; default: the recipe's")
    ] = None,
    against: Annotated[
        list[Path] | None, typer.Option(help="another checkpoint to test against; may be repeated")
    ] = None,
    part: Annotated[str, typer.Option(help="queries to use: test or validation")] = "test",
    out: Annotated[Path | None, typer.Option(help="write the figures to this JSON file as well")] = None,
) -> None:
    """Print right answers at each number of shots, and paired tests with Holm's correction over all of them."""
    console = Console(highlight=False, soft_wrap=True)
    with reported_errors():
        recipe = resolve(settings or [], preset=preset)
        from recipes.pointer_selector.evaluation import evaluate
        from recipes.pointer_selector.policy import use_threads
        from recipes.pointer_selector.preparation import prepare

        use_threads(recipe.trainer.threads)
        folder = checkpoint or checkpoint_dir(recipe.trainer.experiment_name)
        evaluation = evaluate(prepare(recipe), folder, recipe.validation.shots, against or [], part)
        _show(evaluation, console)
        if out:
            write_json(out, evaluation.as_dict())


def _show_data(prepared: Prepared, console: Console) -> None:
    """Print the counts of what was read, and what the filters took out of the training part."""

    def shown(value: Any) -> str:
        if isinstance(value, Mapping):
            return ", ".join(f"{name}: {shown(each)}" for name, each in value.items())
        if isinstance(value, list):
            return "  ".join(map(shown, value))
        return f"{value:,}" if isinstance(value, int) else f"{value:.3g}" if isinstance(value, float) else str(value)

    parts = {f"{name} queries": len(part) for name, part in prepared.parts.items()}
    dropped = {f"dropped from training: {reason}": number for reason, number in prepared.dropped.items()}
    for what, value in {**prepared.counts, **dropped, **parts}.items():
        console.out(f"{what:45}{shown(value)}")


def _show(evaluation: Evaluation, console: Console) -> None:
    """Print accuracy by number of shots, and the paired tests."""
    shots = sorted({count for by_shots in evaluation.results.values() for count in by_shots})
    accuracy = Table("", *(f"{count}-shot" for count in shots), box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name, by_shots in evaluation.results.items():
        accuracy.add_row(Text(name), *(f"{by_shots[s].accuracy:.1%}" if s in by_shots else "" for s in shots))
    console.print(f"right answers on {evaluation.queries:,} {evaluation.part} queries", accuracy)
    tests = Table(
        "a - b", "shots", "points", "95% interval", "only a / b", "p (Holm)", box=SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
    for c in evaluation.comparisons:
        interval = "" if c.low is None or c.high is None else f"{100 * c.low:+.1f} to {100 * c.high:+.1f}"
        counts = f"{c.a_only} / {c.b_only}", f"{c.p_holm:.2g}"
        tests.add_row(Text(f"{c.a} - {c.b}"), str(c.shots), f"{100 * c.difference:+.1f}", interval, *counts)
    console.print("paired tests: difference in points, 95% interval over query images", tests)
    if evaluation.trained_for < max(shots):
        console.out(f"trained for {evaluation.trained_for} shots; more than that is extrapolation")
