"""Pretrain the tiny Countdown model that ships in recipes/tasks/countdown/tiny."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from recipes.interpreter import ensure

ensure()

import typer

from recipes.tasks.countdown.pretraining import COUNTDOWN, PLAN, Annotators
from recipes.tasks.pretrain import run


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
    compiled: Annotated[bool, typer.Option("--compile", help="Twice as fast on a CPU with a C++ compiler.")] = False,
    commit: Annotated[str, typer.Option(help="For the manifest, outside a checkout.")] = "",
    problems: Annotated[int, typer.Option(min=1, help="Held-out problems to assess on.")] = 256,
) -> None:
    """Train it from scratch: minutes on a GPU, hours on two cores. An interrupted run goes on where it was."""
    annotators = Annotators(hasty=hasty, known=known, learned=learned, misses=misses, trials=trials)
    plan = replace(PLAN, seed=seed, steps=steps, examples=examples, batch=batch, lr=lr, annotators=annotators)
    run(COUNTDOWN, plan, out=out, device=device, compiled=compiled, commit=commit, problems=problems)


if __name__ == "__main__":
    typer.run(main)
