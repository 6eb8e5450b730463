#!/usr/bin/env python
"""Write the number game's train and test files: screenshots from headless Chromium or the hub."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from recipes.installation import ensure

ensure()

import typer

from recipes.data.rows import Split
from recipes.errors import reported_errors
from recipes.paths import data_dir
from recipes.progress_bar import progress_bar
from recipes.tasks.number_game.collect import SPLITS, Journal, collect, counted_by, from_hub, planned, problem, rows
from recipes.tasks.number_game.rules import PRESETS, Settings
from recipes.tasks.prepare import prepare

FOLDERS = {"full": "number_game", "tiny": "number_game_tiny"}


def from_screens(settings: Settings, seed: int, folder: Path, workers: int) -> Iterator[Split]:
    """Play what the journal lacks, and hand on the splits from it."""
    sizes = {"train": settings.train_size, "test": settings.test_size}
    episodes = {split: planned(split, sizes[split], settings, seed=seed) for split in SPLITS}
    journal = Journal(folder.with_name(f"{folder.name}_episodes"))
    begin = time.perf_counter()
    with progress_bar() as progress:
        task = progress.add_task("rounds", total=sum(sizes.values()))
        try:
            every = [*episodes["train"], *episodes["test"]]
            played = collect(every, journal, workers, on_episode=lambda rounds: progress.advance(task, rounds))
        except KeyboardInterrupt:
            print("interrupted; finished episodes are kept: repeat the command", file=sys.stderr)
            raise SystemExit(130) from None
    seconds = time.perf_counter() - begin
    count = sum(len(episode.deals) for episode in played)
    speed = f" in {seconds:.1f} s, {count / seconds:.1f} screenshots a second" if count else ""
    print(f"{len(every) - len(played)} episodes were there, {len(played)} played now: {count} screenshots{speed}")
    facts = {"source": "played in Chromium", "seed": seed, "settings": settings.facts()}
    for split in SPLITS:
        yield Split(split, rows(journal.rounds(episodes[split]), split), facts, sizes[split])


def main(
    preset: Annotated[
        Literal["full", "tiny"], typer.Option(help="full (Qwen2.5-VL-3B) or tiny (the tiny model).")
    ] = "full",
    source: Annotated[
        Literal["browser", "hub"], typer.Option(help="browser or hub (yuehua-s/numbergame).")
    ] = "browser",
    train_size: Annotated[int | None, typer.Option("--train_size", min=1, help="Default: the preset's.")] = None,
    test_size: Annotated[int | None, typer.Option("--test_size", min=1, help="Default: the preset's.")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, max=100, help="Rounds of an episode; default 10.")] = None,
    languages: Annotated[
        Literal["en", "zh", "en,zh"], typer.Option(help="Of the page, drawn for each episode.")
    ] = "en",
    looks: Annotated[
        Literal["various", "held-out", "plain"] | None, typer.Option(help="Default: the preset's.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same rounds and looks.")] = 0,
    workers: Annotated[int, typer.Option(min=1, help="Chromium windows at once.")] = 2,
    hub_path: Annotated[Path | None, typer.Option("--hub_path", help="hub: a local folder with its files.")] = None,
    revision: Annotated[str, typer.Option(help="hub: branch, tag or commit.")] = "main",
    output_dir: Annotated[
        Path | None, typer.Option("--output_dir", help="Default: artifacts/data/number_game or number_game_tiny.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that hold other data.")] = False,
) -> None:
    """Write train.parquet and test.parquet; finished episodes stay in <output_dir>_episodes and are kept."""
    with reported_errors():
        given: dict[str, Any] = {"train_size": train_size, "test_size": test_size, "rounds": rounds}
        given |= {"languages": tuple(languages.split(",")), "looks": looks}
        settings = replace(PRESETS[preset], **{name: value for name, value in given.items() if value is not None})
        folder = output_dir or data_dir(FOLDERS[preset])
        parts = from_hub(hub_path, revision) if source == "hub" else from_screens(settings, seed, folder, workers)
        prepare("number_game", parts, folder, problem=problem, counted_by=counted_by, force=force)


if __name__ == "__main__":
    typer.run(main)
