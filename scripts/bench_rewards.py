"""Time the reward files against public graders, on the same synthetic completions in the same process."""

from __future__ import annotations

import importlib.util
import json
import platform
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Annotated

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from recipes.interpreter import ensure

ensure()

import typer
from rich.console import Console
from rich.table import Table

from recipes.benchmarks.countdown import completions as countdown_completions
from recipes.benchmarks.gsm8k import solutions as gsm8k_solutions
from recipes.benchmarks.stopwatch import Timing, race
from recipes.errors import RecipeError, reported_errors
from recipes.paths import ROOT


def load(path: str) -> ModuleType:
    """A module by its path from the repository's root, as a trainer loads a reward file."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def countdown(count: int, seed: int, group: int, repeats: int) -> list[Timing]:
    """Ours against TinyZero's regex and `eval`, which reads prompt and response in one string."""
    ours, theirs = load("reward_functions/countdown.py"), load("tests/reward_functions/public_graders.py")
    rows = list(countdown_completions(count, seed, group))
    truths = [json.loads(truth) for _, _, truth in rows]
    inputs = {
        "reward_functions/countdown.py": [("countdown", response, truth) for _, response, truth in rows],
        "TinyZero (regex + eval)": [
            (prompt + response, truth["target"], truth["numbers"])
            for (prompt, response, _), truth in zip(rows, truths, strict=True)
        ],
    }
    return race(dict(zip(inputs, (ours.compute_score, theirs.tinyzero_score), strict=True)), inputs, repeats)


def gsm8k(count: int, seed: int, group: int, repeats: int) -> list[Timing]:
    """Ours against verl's grader, in both modes and through the dispatcher that verl's trainer calls."""
    from verl.utils.reward_score import default_compute_score  # takes seconds, so only where it is timed

    ours, theirs = load("reward_functions/gsm8k.py"), load("tests/reward_functions/public_graders.py").verl_gsm8k()
    rows = list(gsm8k_solutions(count, seed, group))
    with_source = [("openai/gsm8k", *row) for row in rows]
    graders = {
        "reward_functions/gsm8k.py": ours.compute_score,
        "verl strict": theirs.compute_score,
        "verl flexible": partial(theirs.compute_score, method="flexible"),
        "verl strict, as its trainer calls it": default_compute_score,
    }
    inputs = dict(zip(graders, (with_source, rows, rows, with_source), strict=True))
    return race(graders, inputs, repeats)


REWARDS: dict[str, Callable[[int, int, int, int], list[Timing]]] = {"countdown": countdown, "gsm8k": gsm8k}


def table(reward: str, timings: list[Timing]) -> Table:
    """Seconds per grader, and how many times as long as ours it takes."""
    view = Table(title=f"{reward}: {timings[0].inputs:,} completions, best pass")
    for column in ("grader", "CPU seconds", "µs each", "full marks", "time / ours"):
        view.add_column(column, justify="left" if column == "grader" else "right")
    for timing in timings:
        ratio = timing.seconds / timings[0].seconds
        cells = (f"{timing.seconds:.3f}", f"{timing.microseconds:.2f}", f"{timing.full_marks:,}", f"{ratio:.2f}")
        view.add_row(timing.name, *cells)
    return view


def main(
    rewards: Annotated[str, typer.Option(help="Comma-separated names of reward files.")] = ",".join(REWARDS),
    count: Annotated[int, typer.Option(min=1, help="Completions per reward.")] = 100_000,
    group: Annotated[int, typer.Option(min=1, help="Completions per problem, as GRPO samples them.")] = 16,
    repeats: Annotated[int, typer.Option(min=1, help="Passes per grader; the fastest counts.")] = 3,
    seed: Annotated[int, typer.Option(help="Seed of the synthetic completions.")] = 0,
    json_path: Annotated[Path | None, typer.Option("--json", help="Write the figures to this file.")] = None,
) -> None:
    """Time the reward files against public graders; a ratio of 1 or more means that ours is at least as fast."""
    report: dict[str, object] = {"python": platform.python_version(), "count": count, "group": group, "seed": seed}
    with reported_errors():
        for reward in rewards.split(","):
            if reward not in REWARDS:
                fix = f"choose from {', '.join(REWARDS)}"
                raise RecipeError(f"no benchmark for {reward!r}", where="--rewards", fix=fix)
            timings = REWARDS[reward](count, seed, group, repeats)
            Console().print(table(reward, timings))
            report[reward] = {
                timing.name: {
                    "seconds": round(timing.seconds, 4),
                    "full_marks": timing.full_marks,
                    "ratio": round(timing.seconds / timings[0].seconds, 3),
                }
                for timing in timings
            }
        text = json.dumps(report, indent=2)
        print(text)
        if json_path:
            json_path.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
