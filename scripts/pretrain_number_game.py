"""Pretrain the tiny Qwen2.5-VL that ships in recipes/tasks/number_game/tiny."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Annotated

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from recipes.interpreter import ensure

ensure()

import typer
from rich.console import Console

from recipes.data.prepare import command
from recipes.data.rewards import load_reward
from recipes.data.rows import read_manifest
from recipes.errors import reported_errors
from recipes.paths import artifacts, data_dir
from recipes.tasks.number_game.pretraining import Plan, assess, pretrain, publish, read, refuse_existing

PLAN = Plan()


def main(
    screenshots: Annotated[
        Path | None, typer.Option(help="Folder with train.parquet and test.parquet of one screen size.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="New folder; default artifacts/models/number_game_tiny.")] = None,
    seed: Annotated[int, typer.Option(min=0)] = PLAN.seed,
    steps: Annotated[int, typer.Option(min=1)] = PLAN.steps,
    reading: Annotated[int, typer.Option(min=0, help="First steps, with careful players only.")] = PLAN.reading,
    batch: Annotated[int, typer.Option(min=1)] = PLAN.batch,
    lr: Annotated[float, typer.Option(min=0.0)] = PLAN.lr,
    judged: Annotated[int, typer.Option(min=1, help="Screenshots of the test split to judge it on.")] = 72,
) -> None:
    """Train it from scratch on this machine's processors, in minutes, and judge it on screenshots it has not seen.

    An interrupted run goes on where it was.
    """
    with reported_errors():
        folder = screenshots or data_dir("number_game_tiny")
        out = (out or artifacts() / "models" / "number_game_tiny").absolute()
        refuse_existing(out)
        train, test = (read(folder / f"{split}.parquet", split) for split in ("train", "test"))
        test = test[:judged]
        score = load_reward("reward_functions/number_game.py:compute_score").compute_score
        plan = Plan(seed=seed, steps=steps, reading=min(reading, steps), batch=batch, lr=lr)
        console = Console(highlight=False)
        console.print(f"{steps} steps of {batch} demonstrations about {len(train)} screenshots")
        work = out.with_name(out.name + ".unfinished")
        model, processor, seconds = pretrain(
            plan, train, work, progress=lambda step, loss: console.print(f"step {step}/{steps}  loss {loss:.4f}")
        )
        console.print(f"Trained in {seconds:.0f} s; judging on {len(test)} screenshots that it has not seen")
        sources = {split: read_manifest(folder / f"{split}.parquet") for split in ("train", "test")}
        manifest = publish(
            model,
            processor,
            out,
            plan,
            facts={
                "command": command(),
                "training_seconds": round(seconds, 1),
                "screenshots": {
                    split: {name: found[name] for name in ("rows", "source", "seed", "sha256")}
                    for split, found in sources.items()
                },
            },
            assess=lambda saved, kept: assess(saved, kept, test, score, seed=seed),
        )
        shutil.rmtree(work)
        console.print(f"{out}: {manifest['parameters']:,} parameters, {manifest['bytes']:,} bytes")
        console.print(manifest["held_out"])


if __name__ == "__main__":
    typer.run(main)
