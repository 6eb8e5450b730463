"""Time Countdown's generator, and the whole way from the generator to checked rows in a parquet file, on one core."""

from __future__ import annotations

import platform
import tempfile
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from recipes.benchmarks import best_of, write_report
from recipes.data.prepare import prepare
from recipes.data.rewards import load_reward
from recipes.errors import RecipeError, reported_errors
from recipes.tasks.countdown.data import PRESETS, Settings, generate, generated, row_gold_response

TARGET = 20_000
"""Problems a second."""


def stages(settings: Settings, folder: Path, seed: int) -> dict[str, Callable[[], object]]:
    """What is timed; each makes the settings' number of problems."""
    score = load_reward("reward_functions/countdown.py").compute_score
    whole = generated(settings, seed=seed)
    buckets = settings.train_buckets + settings.test_buckets
    count = settings.train_size + settings.test_size
    return {
        "problems": lambda: list(islice(generate(settings, buckets, seed=seed), count)),
        "problems, rows, gold check, parquet": lambda: prepare(
            "countdown",
            whole.splits(),
            folder,
            score=score,
            gold_response=row_gold_response,
            command="bench",
            force=True,
        ),
    }


def command(
    preset: Annotated[str, typer.Option(help="paper or tiny.")] = "paper",
    count: Annotated[int, typer.Option(min=1000, help="Problems.")] = 100_000,
    repeats: Annotated[int, typer.Option(min=1, help="Passes; the fastest counts.")] = 3,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the problems.")] = 0,
    out: Annotated[Path | None, typer.Option(help="JSON file for the figures.")] = None,
) -> None:
    """Time Countdown's generator and its rows.

    Processor seconds tell one core's speed where others share the machine.
    """
    with reported_errors():
        if preset not in PRESETS:
            raise RecipeError(f"no preset {preset!r}", where="--preset", fix=f"choose from {', '.join(PRESETS)}")
        sizes = {"train_size": count - max(1, count // 10), "test_size": max(1, count // 10)}
        settings = Settings(**{**vars(PRESETS[preset]), **sizes})
        report: dict[str, object] = {"python": platform.python_version(), "preset": preset}
        report |= {"count": count, "seed": seed}
        table = Table(title=f"{count:,} problems, preset {preset}; the target is {TARGET:,} a second")
        for column in ("stage", "a second (wall)", "a second (processor)"):
            table.add_column(column, justify="left" if column == "stage" else "right")
        with tempfile.TemporaryDirectory() as folder:
            works = stages(settings, Path(folder), seed)
            wall, processor = best_of(repeats, works, time.perf_counter), best_of(repeats, works)
        for name in works:
            rates = round(count / wall[name]), round(count / processor[name])
            table.add_row(name, *(f"{rate:,}" for rate in rates))
            report[name] = {"per_second": rates[0], "per_processor_second": rates[1]}
        Console().print(table)
        write_report(report, out)
