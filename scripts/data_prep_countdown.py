"""Write Countdown's train and test parquet files, from the generator or from the hub's data set."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from recipes.installation import ensure

ensure()

import typer

from recipes.errors import reported_errors
from recipes.paths import data_dir
from recipes.tasks.countdown.problems import PRESETS, counted_by, from_hub, generated, multiset
from recipes.tasks.prepare import prepare

FOLDERS = {"paper": "countdown", "tiny": "countdown_tiny"}


def main(
    preset: Annotated[
        Literal["paper", "tiny"], typer.Option(help="paper (Qwen3-4B) or tiny (the tiny model).")
    ] = "paper",
    source: Annotated[
        Literal["generate", "hub"], typer.Option(help="generate, or hub (Jiayi-Pan/Countdown-Tasks-3to4).")
    ] = "generate",
    hub_path: Annotated[
        Path | None, typer.Option("--hub_path", help="A local parquet file instead of the hub.")
    ] = None,
    revision: Annotated[str, typer.Option(help="Branch, tag or commit of the hub's data set.")] = "main",
    train_size: Annotated[int | None, typer.Option("--train_size", min=1, help="Default: the preset's.")] = None,
    test_size: Annotated[int | None, typer.Option("--test_size", min=1, help="Default: the preset's.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same files, byte for byte.")] = 0,
    output_dir: Annotated[
        Path | None, typer.Option("--output_dir", help="Default: artifacts/data/countdown or countdown_tiny.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that hold other data.")] = False,
) -> None:
    """Write train.parquet and test.parquet with their manifests; no multiset of numbers is in both."""
    with reported_errors():
        settings = PRESETS[preset]
        settings = replace(
            settings, train_size=train_size or settings.train_size, test_size=test_size or settings.test_size
        )
        folder = output_dir or data_dir(FOLDERS[preset])
        if source == "generate":
            problems = generated(settings, seed=seed)
        else:
            problems = from_hub(settings, seed=seed, path=hub_path, revision=revision)
        prepare("countdown", problems, folder, problem=multiset, counted_by=counted_by, force=force)


if __name__ == "__main__":
    typer.run(main)
