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


def chosen_settings(preset: str, source: str, given: Mapping[str, Any]) -> Settings:
    """A preset with the options that were given; the hub's own numbers are not cut unless a range was given."""
    if preset not in PRESETS:
        raise RecipeError(f"no preset {preset!r}", where="--preset", fix=f"choose from {', '.join(PRESETS)}")
    if source not in ("generate", "hub"):
        raise RecipeError(f"no source {source!r}", where="--source", fix="choose from generate, hub")
    if source == "hub":
        given = {"max_number": 100, "max_target": 100, **{name: value for name, value in given.items() if value}}
    return replace(PRESETS[preset], **{name: value for name, value in given.items() if value is not None})


def parsed_sizes(text: str | None) -> tuple[int, ...] | None:
    """`3,4` as (3, 4)."""
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise RecipeError(
            f"--sizes {text!r} is not a list of numbers", where="--sizes", fix="for example 3,4"
        ) from error


def main(
    preset: Annotated[str, typer.Option(help="paper (Qwen3-4B) or tiny (the embedded tiny model).")] = "paper",
    source: Annotated[str, typer.Option(help="generate, or hub (Jiayi-Pan/Countdown-Tasks-3to4).")] = "generate",
    hub_path: Annotated[
        Path | None, typer.Option("--hub_path", help="A local parquet file instead of the hub.")
    ] = None,
    revision: Annotated[str, typer.Option(help="Branch, tag or commit of the hub's data set.")] = "main",
    train_size: Annotated[int | None, typer.Option("--train_size", help="Default: the preset's.")] = None,
    test_size: Annotated[int | None, typer.Option("--test_size", help="Default: the preset's.")] = None,
    sizes: Annotated[str | None, typer.Option(help="How many numbers a problem has, such as 3,4.")] = None,
    min_number: Annotated[int | None, typer.Option("--min_number", help="Smallest number.")] = None,
    max_number: Annotated[int | None, typer.Option("--max_number", help="Largest number.")] = None,
    min_target: Annotated[int | None, typer.Option("--min_target", help="Smallest target.")] = None,
    max_target: Annotated[int | None, typer.Option("--max_target", help="Largest target.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same files, byte for byte.")] = 0,
    output_dir: Annotated[
        Path | None, typer.Option("--output_dir", help="Default: artifacts/data/countdown or countdown_tiny.")
    ] = None,
    reward_path: Annotated[
        str, typer.Option("--reward_path", help="Reward under which every solution must score 1.0.")
    ] = "reward_functions/countdown.py",
    force: Annotated[bool, typer.Option("--force", help="Replace files that hold other data.")] = False,
) -> None:
    """Write train.parquet and test.parquet with their manifests; no multiset of numbers is in both."""
    with reported_errors():
        ranges = {
            "min_number": min_number,
            "max_number": max_number,
            "min_target": min_target,
            "max_target": max_target,
        }
        given = ranges | {"train_size": train_size, "test_size": test_size, "sizes": parsed_sizes(sizes)}
        settings = chosen_settings(preset, source, given)
        folder = output_dir or data_dir(FOLDERS[preset])
        if source == "generate":
            problems = generated(settings, seed=seed)
        else:
            problems = from_hub(settings, seed=seed, path=hub_path, revision=revision)
        prepare("countdown", problems, folder, reward=reward_path, problem=multiset, counted_by=counted_by, force=force)


if __name__ == "__main__":
    typer.run(main)
