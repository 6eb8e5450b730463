"""What every `scripts/pretrain_*.py` does with its options: train, judge, and write the finished folder."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

from recipes.errors import RecipeError, reported_errors
from recipes.paths import artifacts
from recipes.tasks.pretrain.publish import current_commit, publish, refuse_existing
from recipes.tasks.pretrain.task import Task
from recipes.tasks.pretrain.train import Plan, pretrain


def run(
    task: Task,
    plan: Plan,
    *,
    out: Path | None,
    device: str,
    stop: int | None = None,
    compiled: bool,
    commit: str,
    problems: int,
) -> None:
    """Train from scratch, or go on with an interrupted training, and publish to `out`.

    Args:
        out: a new folder; None: `artifacts/models/<task>_tiny`.
        stop, compiled: see `pretrain`.
        commit: for the manifest; "": that of the checkout.
        problems: held-out problems to judge on.
    """
    with reported_errors():
        from rich.console import Console

        out = (out or artifacts() / "models" / f"{task.name}_tiny").absolute()
        refuse_existing(out)
        if plan.batch > plan.examples:
            raise RecipeError(f"--batch {plan.batch} is larger than --examples {plan.examples}", fix="make it smaller")
        console = Console(highlight=False)
        work = out.with_name(out.name + ".unfinished")
        where, words = _device(device)
        stop = min(stop or plan.steps, plan.steps)
        console.print(f"{stop} steps of {plan.batch} demonstrations on {words}; unfinished work in {work}")

        def progress(step: int, loss: float) -> None:
            console.print(f"step {step}/{stop}  loss {loss:.4f}")

        model, tokenizer, seconds = pretrain(
            task, plan, work, device=where, stop=stop, compiled=compiled, progress=progress
        )
        console.print(f"Trained in {seconds:.0f} s; judging on {problems} held-out problems")
        manifest = publish(
            task,
            model,
            tokenizer,
            out,
            plan,
            command=shlex.join(["python", f"scripts/pretrain_{task.name}.py", *sys.argv[1:]]),
            commit=commit or current_commit(task),
            device=words,
            steps=stop,
            seconds=seconds,
            problems=problems,
        )
        shutil.rmtree(work)
        console.print(f"{out}: {manifest['parameters']:,} parameters, {manifest['bytes']:,} bytes")
        console.print(manifest["held_out"])


def _device(asked: str) -> tuple[str, str]:
    """The torch device, and what it is called."""
    import torch

    where = ("cuda" if torch.cuda.is_available() else "cpu") if asked == "auto" else asked
    if where == "cuda" and torch.cuda.is_available():
        return where, torch.cuda.get_device_name()
    if where == "cpu":
        threads = torch.get_num_threads()
        return where, f"CPU, {threads} thread{'s' if threads > 1 else ''}"
    raise RecipeError(
        f"there is no device {asked!r} here", where="--device", fix="cpu, or cuda on a machine with a GPU"
    )
