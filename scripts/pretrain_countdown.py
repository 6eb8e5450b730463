"""Pretrain the tiny Countdown model that ships in recipes/tasks/countdown/tiny."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path
from typing import Annotated

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import typer
from rich.console import Console

from recipes.errors import RecipeError, reported_errors
from recipes.paths import artifacts
from recipes.tasks.countdown.pretrain.examples import Annotators
from recipes.tasks.countdown.pretrain.publish import current_commit, publish, refuse_existing
from recipes.tasks.countdown.pretrain.train import Plan, pretrain

PLAN = Plan()


def main(
    out: Annotated[Path | None, typer.Option(help="New folder; default artifacts/models/countdown_tiny.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto.")] = "auto",
    seed: Annotated[int, typer.Option(min=0)] = PLAN.seed,
    steps: Annotated[int, typer.Option(min=1)] = PLAN.steps,
    examples: Annotated[int, typer.Option(min=1, help="Distinct demonstrations.")] = PLAN.examples,
    batch: Annotated[int, typer.Option(min=1)] = PLAN.batch,
    lr: Annotated[float, typer.Option(min=0.0)] = PLAN.lr,
    hasty: Annotated[float, typer.Option(min=0.0, max=1.0)] = PLAN.annotators.hasty,
    known: Annotated[float, typer.Option(min=0.0, max=1.0)] = PLAN.annotators.known,
    learned: Annotated[float, typer.Option(min=0.0, max=1.0)] = PLAN.annotators.learned,
    misses: Annotated[int, typer.Option(min=1)] = PLAN.annotators.misses,
    trials: Annotated[int, typer.Option(min=1)] = PLAN.annotators.trials,
    commit: Annotated[str, typer.Option(help="For the manifest, outside a checkout.")] = "",
    problems: Annotated[int, typer.Option(min=1, help="Held-out problems to assess on.")] = 256,
) -> None:
    """Train it from scratch: minutes on a GPU, hours on two cores. An interrupted run goes on where it was."""
    with reported_errors():
        out = (out or artifacts() / "models" / "countdown_tiny").absolute()
        refuse_existing(out)
        annotators = Annotators(hasty=hasty, known=known, learned=learned, misses=misses, trials=trials)
        plan = Plan(seed=seed, steps=steps, examples=examples, batch=batch, lr=lr, annotators=annotators)
        if plan.batch > plan.examples:
            raise RecipeError(f"--batch {batch} is larger than --examples {examples}", fix="make it smaller")
        console = Console(highlight=False)
        work = out.with_name(out.name + ".unfinished")
        where, words = _device(device)
        console.print(f"Training for {steps} steps of {batch} demonstrations on {words}; unfinished work in {work}")
        model, tokenizer, seconds = pretrain(
            plan, work, device=where, progress=lambda step, loss: console.print(f"step {step}/{steps}  loss {loss:.4f}")
        )
        console.print(f"Trained in {seconds:.0f} s; judging on {problems} held-out problems")
        manifest = publish(
            model,
            tokenizer,
            out,
            plan,
            command=shlex.join(["python", "scripts/pretrain_countdown.py", *sys.argv[1:]]),
            commit=commit or current_commit(),
            device=words,
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
        return where, f"CPU, {torch.get_num_threads()} threads"
    raise RecipeError(
        f"there is no device {asked!r} here", where="--device", fix="cpu, or cuda on a machine with a GPU"
    )


if __name__ == "__main__":
    typer.run(main)
