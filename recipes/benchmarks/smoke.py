"""Time the first thing a newcomer types, one step of Countdown, and weigh its processes."""

from __future__ import annotations

import json
import os
import platform
import shlex
import shutil
import statistics
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from recipes.benchmarks.watching import Watched, last_lines, watch
from recipes.errors import RecipeError, reported_errors
from recipes.paths import ROOT, artifacts

EXPERIMENT = "bench_smoke"
LAUNCHER = "bash examples/countdown/qwen3_4b_countdown_grpo.sh"


def table(seen: Watched) -> Table:
    """The measurements, for people."""
    later = seen.step_s[1:]
    rows = {
        "exit code": str(seen.exit_code),
        "whole command": f"{seen.wall_s:.1f} s",
        "until the validation at step 0": "-" if seen.first_metrics_s is None else f"{seen.first_metrics_s:.1f} s",
        "first step": f"{seen.step_s[0]:.2f} s" if seen.step_s else "-",
        "each further step": f"{statistics.median(later):.2f} s (median of {len(later)})" if later else "-",
        "peak memory, summed PSS": f"{seen.peak_pss_bytes / 2**30:.2f} GiB",
        "most processes": str(seen.peak_processes),
        "CPU time": f"{seen.cpu_s:.1f} s",
    }
    shown = Table(show_header=False)
    for row in rows.items():
        shown.add_row(*row)
    return shown


def command(
    launcher: Annotated[str, typer.Option("--command", help="Launcher to run, as typed in a shell.")] = LAUNCHER,
    steps: Annotated[int, typer.Option(help="MAX_STEPS of the run.", min=1)] = 1,
    out: Annotated[Path | None, typer.Option(help="JSON file for the measurements.")] = None,
    interval: Annotated[float, typer.Option(help="Seconds between two samples of the memory.")] = 0.5,
) -> None:
    """Time a launcher from nothing, with its memory.

    It runs in a folder of its own under artifacts/benchmarks, data included.
    """
    with reported_errors():
        folder = artifacts() / "benchmarks" / EXPERIMENT
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        variables = {
            "ARTIFACTS_DIR": str(folder / "artifacts"),
            "EXPERIMENT_NAME": EXPERIMENT,
            "MAX_STEPS": str(steps),
        }
        metrics, log = folder / "artifacts" / "runs" / EXPERIMENT / "metrics.jsonl", folder / "output.log"
        os.chdir(ROOT)
        about = {"command": f"MAX_STEPS={steps} {launcher}", "cores": os.cpu_count(), "load_before": os.getloadavg()[0]}
        seen = watch(shlex.split(launcher), environment=variables, metrics=metrics, log=log, interval_s=interval)
        report = {**about, "python": platform.python_version(), **asdict(seen)}
        (out or folder / "result.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
        Console().print(table(seen))
        if seen.exit_code != 0:
            print(last_lines(log))
            what = f"the command ended with {seen.exit_code}"
            raise RecipeError(what, where=str(log), fix="its last lines are above")
