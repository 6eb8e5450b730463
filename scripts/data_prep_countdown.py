"""Write Countdown's train and test parquet files, from the generator or from the hub's data set."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from recipes.interpreter import ensure

ensure()

import typer

from recipes.data.prepare import prepare
from recipes.errors import RecipeError, reported_errors
from recipes.paths import data_dir
from recipes.tasks.countdown.problems import PRESETS, Settings
from recipes.tasks.countdown.rows import counted_by, from_hub, generated, multiset

FOLDERS = {"paper": "countdown", "tiny": "countdown_tiny"}
REWARD = "reward_functions/countdown.py"
"""Under which every solution must score 1.0."""


def chosen_settings(preset: str, source: str, given: Mapping[str, Any]) -> Settings:
    """A preset with the sizes that were given; the hub's own numbers are not cut."""
    if preset not in PRESETS:
        raise RecipeError(f"no preset {preset!r}", where="--preset", fix=f"choose from {', '.join(PRESETS)}")
    if source not in ("generate", "hub"):
        raise RecipeError(f"no source {source!r}", where="--source", fix="choose from generate, hub")
    sizes = {name: value for name, value in given.items() if value is not None}
    settings: Settings = replace(PRESETS[preset], **sizes)
    return replace(settings, max_number=100, max_target=100) if source == "hub" else settings


def main(
    preset: Annotated[str, typer.Option(help="paper (Qwen3-4B) or tiny (the embedded tiny model).")] = "paper",
    source: Annotated[str, typer.Option(help="generate, or hub (Jiayi-Pan/Countdown-Tasks-3to4).")] = "generate",
    hub_path: Annotated[
        Path | None, typer.Option("--hub_path", help="A local parquet file instead of the hub.")
    ] = None,
    revision: Annotated[str, typer.Option(help="Branch, tag or commit of the hub's data set.")] = "main",
    train_size: Annotated[int | None, typer.Option("--train_size", help="Default: the preset's.")] = None,
    test_size: Annotated[int | None, typer.Option("--test_size", help="Default: the preset's.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same files, byte for byte.")] = 0,
    output_dir: Annotated[
        Path | None, typer.Option("--output_dir", help="Default: artifacts/data/countdown or countdown_tiny.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that hold other data.")] = False,
) -> None:
    """Write train.parquet and test.parquet with their manifests; no multiset of numbers is in both."""
    with reported_errors():
        settings = chosen_settings(preset, source, {"train_size": train_size, "test_size": test_size})
        folder = output_dir or data_dir(FOLDERS[preset])
        if source == "generate":
            problems = generated(settings, seed=seed)
        else:
            problems = from_hub(settings, seed=seed, path=hub_path, revision=revision)
        prepare("countdown", problems, folder, reward=REWARD, problem=multiset, counted_by=counted_by, force=force)


if __name__ == "__main__":
    typer.run(main)
