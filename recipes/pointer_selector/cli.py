"""The commands of the pointer selector: look at the data, train, evaluate."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from recipes.config.variables import control, not_read
from recipes.errors import reported_errors
from recipes.files import run_lock, write_json
from recipes.paths import checkpoint_dir, relative_to_cwd, run_dir
from recipes.pointer_selector.config import PointerRecipe, differences, presets, resolve
from recipes.yaml_text import dump

if TYPE_CHECKING:  # torch is imported when a command starts, so that --help does not wait for it
    from recipes.pointer_selector.dataset import Prepared

Settings = Annotated[list[str] | None, typer.Argument(help="key=value, for instance rce.epochs=3 data.batch_size=4")]
Preset = Annotated[str | None, typer.Option(help=f"settings that lie over the recipe's: {', '.join(presets())}")]


def data_command(settings: Settings = None, preset: Preset = None) -> None:
    """Read and check the recipe's data, and print what it holds; the embedded workload is made if it is not there."""
    with reported_errors():
        recipe = resolve(settings or [], preset=preset)
        from recipes.pointer_selector.dataset import prepare

        _show_data(prepare(recipe), Console(highlight=False, soft_wrap=True))


def train_command(settings: Settings = None, preset: Preset = None) -> None:
    """Train the pointer selector; a run that was interrupted goes on after its last finished phase."""
    with reported_errors():
        train(resolve(settings or [], preset=preset), Console(highlight=False, soft_wrap=True))


def train(recipe: PointerRecipe, console: Console) -> None:
    """Train the recipe and test its best checkpoint; with DRY_RUN=1 print it with the accounting, and stop."""
    import torch

    from recipes.pointer_selector.dataset import prepare
    from recipes.pointer_selector.evaluation import evaluate
    from recipes.pointer_selector.selector import choose_device
    from recipes.pointer_selector.training import RunLog, Trainer

    torch.set_num_threads(recipe.trainer.threads)
    for note in not_read(os.environ, PointerRecipe):
        console.out(f"note: {note}")
    if control(os.environ, "DRY_RUN"):
        print(dump(recipe.model_dump()), end="")
        for line in accounting(recipe, prepare(recipe)):
            print(f"# {line}")
        return
    started, name = time.perf_counter(), recipe.trainer.experiment_name
    folder, checkpoints = run_dir(name), checkpoint_dir(name)
    console.out(f"experiment {name}: reading the data")
    prepared = prepare(recipe)
    _show_data(prepared, console)
    for line in accounting(recipe, prepared):
        console.out(line)
    with run_lock(folder / ".lock", name):
        device = choose_device(recipe.trainer.device)
        trainer = Trainer(recipe, prepared, checkpoints, device)  # refuses another run's folder
        (folder / "config.yaml").write_text(dump(recipe.model_dump()), encoding="utf-8")
        about = {"task": "pointer_selector", "total": updates(recipe, prepared), "checkpoints": str(checkpoints)}
        write_json(folder / "about.json", about)  # what `recipes.runs` shows of it
        write_json(folder / "data.json", {**prepared.counts, "dropped from training": prepared.dropped})
        console.out(f"training on {device.type}; metrics: {relative_to_cwd(folder / 'metrics.jsonl')}")
        with closing(RunLog(folder, trainer.progress.step)) as log:
            trainer.log, trainer.show = log.write, console.out
            progress = trainer.run()
        seconds, best = time.perf_counter() - started, progress.best
        evaluation = evaluate(prepared, checkpoints, recipe.validation.shots)
        _show(evaluation, console)
        for phase, end in progress.ends.items():
            console.out(f"{phase}: {end}")
        where = relative_to_cwd(checkpoints / "best")
        console.out(f"best: {best.phase} epoch {best.epoch}, {where}; {seconds:.0f} s before the test")
        console.out(f"next: {shlex.join(['python', 'scripts/eval_pointer_selector.py', *differences(recipe)])}")
        run = {"best": asdict(best), "ends": progress.ends, "seconds": round(seconds, 1)}
        write_json(folder / "summary.json", {**run, **evaluation})


def accounting(recipe: PointerRecipe, prepared: Prepared) -> list[str]:
    """The numbers of groups and updates, and the notes of `unread`."""
    from recipes.pointer_selector.dataset import shot_num
    from recipes.pointer_selector.losses import equal_groups, rewards, unread

    train_part = prepared.parts["train"]
    equal = equal_groups(rewards(train_part, recipe.reward), train_part)
    first = f", the first in query {train_part.query_ids[train_part.group_query[equal[0]]]!r}" if len(equal) else ""
    per_epoch = -(-len(train_part) // recipe.data.batch_size)
    notes = unread(recipe)
    if (shots := shot_num(recipe, train_part)) < recipe.data.shot_num:
        notes.append(f"SHOT_NUM is {shots}: no longer sequence is logged")
    if not train_part.has_truth:
        notes.append("no candidate has vqa_correct: validation and test look up beam_score, within its group")
    return [
        f"training groups: {len(train_part.group_query):,} with {len(train_part.lengths):,} candidates",
        f"groups with equal rewards (advantage 0): {len(equal):,}{first}",
        f"updates: {per_epoch:,} an epoch, at most {updates(recipe, prepared):,}",
        *(f"note: {note}" for note in notes),
    ]


def updates(recipe: PointerRecipe, prepared: Prepared) -> int:
    """The number of updates of both phases, if none of them stops early."""
    return -(-len(prepared.parts["train"]) // recipe.data.batch_size) * (recipe.rce.epochs + recipe.grpo.epochs)


def evaluate_command(
    settings: Annotated[list[str] | None, typer.Argument(help="key=value of the recipe that was trained")] = None,
    preset: Preset = None,
    part: Annotated[Literal["test", "validation"], typer.Option(help="queries to use")] = "test",
    out: Annotated[Path | None, typer.Option(help="write the figures to this JSON file as well")] = None,
) -> None:
    """Print right answers at each number of shots, and paired tests with Holm's correction over all of them."""
    with reported_errors():
        recipe = resolve(settings or [], preset=preset)
        from recipes.pointer_selector.dataset import prepare
        from recipes.pointer_selector.evaluation import evaluate

        folder = checkpoint_dir(recipe.trainer.experiment_name)
        evaluation = evaluate(prepare(recipe), folder, recipe.validation.shots, part)
        _show(evaluation, Console(highlight=False, soft_wrap=True))
        if out:
            write_json(out, evaluation)


def _show_data(prepared: Prepared, console: Console) -> None:
    parts = {f"{name} queries": len(part) for name, part in prepared.parts.items()}
    console.out(dump({**prepared.counts, "dropped from training": prepared.dropped, **parts}), end="")


def _show(evaluation: Mapping[str, Any], console: Console) -> None:
    shots = sorted({count for by_shots in evaluation["accuracy"].values() for count in by_shots}, key=int)
    accuracy = Table("", *(f"{count}-shot" for count in shots), box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name, by_shots in evaluation["accuracy"].items():
        accuracy.add_row(Text(name), *(f"{by_shots[s]:.1%}" if s in by_shots else "" for s in shots))
    console.print(f"{evaluation['measure']} on {evaluation['queries']:,} {evaluation['part']} queries", accuracy)
    heads = ("a - b", "shots", "points", "95% interval", "only a / b", "p (Holm)")
    tests = Table(*heads, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for test in evaluation["tests"]:
        interval = "" if test["low"] is None else f"{100 * test['low']:+.1f} to {100 * test['high']:+.1f}"
        figures = f"{100 * test['difference']:+.1f}", interval, f"{test['a_only']} / {test['b_only']}"
        tests.add_row(Text(f"{test['a']} - {test['b']}"), str(test["shots"]), *figures, f"{test['p_holm']:.2g}")
    console.print("paired tests: difference in points, 95% interval over query images", tests)
    if evaluation["trained_for"] < max(map(int, shots)):
        console.out(f"trained for {evaluation['trained_for']} shots; more than that is extrapolation")


if __name__ == "__main__":
    typer.run(train_command)
