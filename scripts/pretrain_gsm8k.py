"""Pretrain the tiny model for word problems in GSM8K's format that ships in recipes/tasks/gsm8k/tiny."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from recipes.interpreter import ensure

ensure()

import typer

from recipes.tasks.gsm8k.pretraining import GSM8K, PLAN, STOP, Annotators
from recipes.tasks.pretrain import run


def main(
    out: Annotated[Path | None, typer.Option(help="New folder; default artifacts/models/gsm8k_tiny.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto.")] = "auto",
    seed: Annotated[int, typer.Option(min=0)] = PLAN.seed,
    steps: Annotated[int, typer.Option(min=1, help="Over which the learning rate falls.")] = PLAN.steps,
    stop: Annotated[int, typer.Option(min=1, help="End after this step.")] = STOP,
    examples: Annotated[int, typer.Option(min=1, help="Distinct demonstrations.")] = PLAN.examples,
    batch: Annotated[int, typer.Option(min=1)] = PLAN.batch,
    lr: Annotated[float, typer.Option(min=0.0)] = PLAN.lr,
    careless: Annotated[float, typer.Option(min=0.0, max=1.0)] = PLAN.annotators.careless,
    slips: Annotated[float, typer.Option(min=0.0, max=1.0)] = PLAN.annotators.slips,
    compiled: Annotated[bool, typer.Option("--compile", help="Twice as fast on a CPU with a C++ compiler.")] = False,
    commit: Annotated[str, typer.Option(help="For the manifest, outside a checkout.")] = "",
    problems: Annotated[int, typer.Option(min=1, help="Held-out problems to assess on.")] = 256,
) -> None:
    """Train it from scratch: minutes on a CPU. An interrupted run goes on where it was."""
    annotators = Annotators(careless=careless, slips=slips)
    plan = replace(PLAN, seed=seed, steps=steps, examples=examples, batch=batch, lr=lr, annotators=annotators)
    run(GSM8K, plan, out=out, device=device, stop=stop, compiled=compiled, commit=commit, problems=problems)


if __name__ == "__main__":
    typer.run(main)
