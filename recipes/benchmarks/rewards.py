"""Time the reward files against public graders, on the same synthetic completions in the same process."""

from __future__ import annotations

import importlib.util
import json
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from recipes.benchmarks import completions
from recipes.errors import RecipeError, reported_errors
from recipes.paths import ROOT


@dataclass(frozen=True)
class Timing:
    """One grader's best pass over all inputs.

    `seconds` is CPU time, which other work on the machine hardly changes; `full_marks` counts scores of 1.0.
    """

    name: str
    seconds: float
    inputs: int
    full_marks: int

    @property
    def microseconds(self) -> float:
        """Per input."""
        return self.seconds / self.inputs * 1e6


def race(graders: dict[str, Callable[..., Any]], inputs: dict[str, Sequence[tuple]], repeats: int) -> list[Timing]:
    """Time each grader over its inputs; passes take turns, so that a busy machine slows all of them alike.

    Args:
        graders: name -> function that returns a number, or a dict with `score`.
        inputs: name -> argument tuples, the same completions for every name, in the form that the grader takes.
        repeats: passes per grader; the fastest counts.
    """
    best = dict.fromkeys(graders, float("inf"))
    full = dict.fromkeys(graders, 0)
    for _ in range(repeats):
        for name, grade in graders.items():
            marks = 0
            begin = time.process_time()
            for arguments in inputs[name]:
                score = grade(*arguments)
                marks += (score["score"] if type(score) is dict else score) == 1.0
            best[name] = min(best[name], time.process_time() - begin)
            full[name] = marks
    return [Timing(name, best[name], len(inputs[name]), full[name]) for name in graders]


def load(path: str) -> ModuleType:
    """A module by its path from the repository's root, as a trainer loads a reward file."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def countdown(count: int, seed: int, group: int, repeats: int) -> list[Timing]:
    """Ours against TinyZero's regex and `eval`, which reads prompt and response in one string."""
    ours, theirs = load("reward_functions/countdown.py"), load("tests/reward_functions/public_graders.py")
    rows = list(completions.countdown(count, seed, group))
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
    rows = list(completions.gsm8k(count, seed, group))
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


def command(
    rewards: Annotated[str, typer.Option(help="Comma-separated names of reward files.")] = ",".join(REWARDS),
    count: Annotated[int, typer.Option(min=1, help="Completions per reward.")] = 100_000,
    group: Annotated[int, typer.Option(min=1, help="Completions per problem, as GRPO samples them.")] = 16,
    repeats: Annotated[int, typer.Option(min=1, help="Passes per grader; the fastest counts.")] = 3,
    seed: Annotated[int, typer.Option(help="Seed of the synthetic completions.")] = 0,
    out: Annotated[Path | None, typer.Option(help="JSON file for the figures.")] = None,
) -> None:
    """Time rewards against public graders.

    A ratio of 1 or more means that ours is at least as fast.
    """
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
        if out:
            out.write_text(text + "\n", encoding="utf-8")
