#!/usr/bin/env python
"""Time the sandbox for model-written programs against plain subprocesses, as many at a time as there are cores."""

from __future__ import annotations

import json
import os
import platform
import sys
from pathlib import Path
from typing import Annotated

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from recipes.interpreter import ensure

ensure()

import typer
from rich.console import Console
from rich.table import Table

from recipes.benchmarks.sandbox import race
from recipes.errors import reported_errors

CORES = len(os.sched_getaffinity(0))


def main(
    programs: Annotated[int, typer.Option(min=1, help="Programs per pass.")] = 60,
    tests: Annotated[str, typer.Option(help="Tests per program, one measurement each, comma-separated.")] = "1,5",
    threads: Annotated[int, typer.Option(min=1, help="Programs at a time.")] = CORES,
    repeats: Annotated[int, typer.Option(min=1, help="Passes; the fastest counts.")] = 3,
    json_path: Annotated[Path | None, typer.Option("--json", help="Write the figures to this file.")] = None,
) -> None:
    """Programs per second in the sandbox, and how that compares with no sandbox at all."""
    view = Table(title=f"{programs} programs, {threads} at a time on {CORES} cores, best of {repeats} passes")
    for column in ("tests each", "way", "programs/s", "tests/s", "ratio"):
        view.add_column(column, justify="left" if column == "way" else "right")
    report: dict[str, object] = {"python": platform.python_version(), "cores": CORES, "threads": threads}
    with reported_errors():
        for count in (int(text) for text in tests.split(",")):
            paces = race(programs, count, threads, repeats)
            for pace in paces:
                ratio = pace.per_second / paces[-1].per_second
                view.add_row(
                    str(count), pace.name, f"{pace.per_second:.1f}", f"{pace.per_second * count:.1f}", f"{ratio:.2f}"
                )
                report[f"{pace.name}, {count} tests"] = {
                    "programs_per_second": round(pace.per_second, 2),
                    "ratio": round(ratio, 3),
                }
    Console().print(view)
    print(json.dumps(report))
    if json_path:
        json_path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
