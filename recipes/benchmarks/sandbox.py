"""Programs per second in the sandbox, and in a plain subprocess: the same programs, which are known to be harmless."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from recipes.benchmarks import best_of, write_report
from recipes.data.rewards import load_reward
from recipes.errors import RecipeError, reported_errors

CORES = len(os.sched_getaffinity(0))
PROGRAM = "n = int(input())\nvalues = [k * k for k in range(n)]\nprint(sum(values) % 1000003)\n"


def sandbox() -> ModuleType:
    """The sandbox of `reward_functions/dispatch.py`, after it ran one program.

    Raises:
        RecipeError: it does not work here.
    """
    dispatch = load_reward("reward_functions/dispatch.py")
    try:
        dispatch.sandbox.check()
    except dispatch.sandbox.SandboxMissing as error:
        raise RecipeError("there is no sandbox to time", where="bubblewrap", fix=str(error)) from error
    return dispatch.sandbox


def inputs(tests: int) -> list[str]:
    """What each test gives to the program."""
    return [f"{100 + number}\n" for number in range(tests)]


def sandboxed(module: ModuleType, tests: int) -> None:
    """One program with its tests, in one sandbox."""
    results = module.run("script", PROGRAM, inputs(tests), module.Limits())
    _check([result.get("output", result["status"]) for result in results], tests)


def plain(tests: int) -> None:
    """One program with its tests, each in a subprocess without any protection."""
    command = [os.path.realpath(sys.executable), "-I", "-S", "-c", PROGRAM]
    options = {"capture_output": True, "text": True, "check": True, "env": {}}
    _check([subprocess.run(command, input=text, **options).stdout for text in inputs(tests)], tests)


def _check(outputs: list[str], tests: int) -> None:
    expected = [f"{sum(k * k for k in range(int(text))) % 1000003}\n" for text in inputs(tests)]
    if outputs != expected:
        raise RecipeError(f"the programs print {outputs[:2]}, not {expected[:2]}", where="the sandbox", fix="mend it")


def programs_per_second(programs: int, tests: int, threads: int, repeats: int) -> dict[str, float]:
    """Both ways to run programs, `threads` at a time."""
    module = sandbox()
    with ThreadPoolExecutor(threads) as pool:

        def run_all(run: Callable[[], None]) -> None:
            for future in [pool.submit(run) for _ in range(programs)]:
                future.result()

        works = {
            "sandbox": lambda: run_all(lambda: sandboxed(module, tests)),
            "plain subprocess": lambda: run_all(lambda: plain(tests)),
        }
        return {name: programs / seconds for name, seconds in best_of(repeats, works, time.perf_counter).items()}


def command(
    programs: Annotated[int, typer.Option(min=1, help="Programs per pass.")] = 60,
    tests: Annotated[str, typer.Option(help="Tests per program, one measurement each, comma-separated.")] = "1,5",
    threads: Annotated[int, typer.Option(min=1, help="Programs at a time.")] = CORES,
    repeats: Annotated[int, typer.Option(min=1, help="Passes; the fastest counts.")] = 3,
    out: Annotated[Path | None, typer.Option(help="JSON file for the figures.")] = None,
) -> None:
    """Time programs in the sandbox, and without it."""
    view = Table(title=f"{programs} programs, {threads} at a time on {CORES} cores, best of {repeats} passes")
    for column in ("tests each", "way", "programs/s", "tests/s", "ratio"):
        view.add_column(column, justify="left" if column == "way" else "right")
    report: dict[str, object] = {"python": platform.python_version(), "cores": CORES, "threads": threads}
    with reported_errors():
        for count in (int(text) for text in tests.split(",")):
            rates = programs_per_second(programs, count, threads, repeats)
            for name, rate in rates.items():
                ratio = rate / rates["plain subprocess"]
                view.add_row(str(count), name, f"{rate:.1f}", f"{rate * count:.1f}", f"{ratio:.2f}")
                report[f"{name}, {count} tests"] = {"programs_per_second": round(rate, 2), "ratio": round(ratio, 3)}
        Console().print(view)
        print(json.dumps(report))
        write_report(report, out)
