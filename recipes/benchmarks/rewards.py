"""Time the reward files against public graders, on the same synthetic completions in the same process."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from recipes.benchmarks import best_of, completions, write_report
from recipes.data.rewards import load_reward
from recipes.errors import RecipeError, reported_errors

PUBLIC_GRADERS = "tests/reward_functions/public_graders.py"


@dataclass(frozen=True)
class Grader:
    """A function that returns a number, or a dict with `score`, and its arguments for each completion."""

    grade: Callable[..., Any]
    arguments: Sequence[tuple]

    def full_marks(self) -> int:
        """Grade all completions; how many scored 1.0."""
        full = 0
        for arguments in self.arguments:
            score = self.grade(*arguments)
            full += (score["score"] if type(score) is dict else score) == 1.0
        return full


def countdown(count: int, seed: int, group: int) -> dict[str, Grader]:
    """Ours against TinyZero's regex and `eval`, which reads prompt and response in one string."""
    ours, theirs = load_reward("reward_functions/countdown.py"), load_reward(PUBLIC_GRADERS)
    rows = [(*row, json.loads(row[-1])) for row in completions.countdown(count, seed, group)]
    return {
        "reward_functions/countdown.py": Grader(
            ours.compute_score, [("countdown", response, truth) for _, response, truth, _ in rows]
        ),
        "TinyZero (regex + eval)": Grader(
            theirs.tinyzero_score,
            [(prompt + response, problem["target"], problem["numbers"]) for prompt, response, _, problem in rows],
        ),
    }


def gsm8k(count: int, seed: int, group: int) -> dict[str, Grader]:
    """Ours against verl's grader, in both modes and through the dispatcher that verl's trainer calls."""
    from verl.utils.reward_score import default_compute_score  # takes seconds, so only where it is timed

    ours, theirs = load_reward("reward_functions/gsm8k.py"), load_reward(PUBLIC_GRADERS).verl_gsm8k()
    rows = list(completions.gsm8k(count, seed, group))
    with_source = [("openai/gsm8k", *row) for row in rows]
    return {
        "reward_functions/gsm8k.py": Grader(ours.compute_score, with_source),
        "verl strict": Grader(theirs.compute_score, rows),
        "verl flexible": Grader(partial(theirs.compute_score, method="flexible"), rows),
        "verl strict, as its trainer calls it": Grader(default_compute_score, with_source),
    }


REWARDS: dict[str, Callable[[int, int, int], dict[str, Grader]]] = {"countdown": countdown, "gsm8k": gsm8k}


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
    report: dict[str, Any] = {"python": platform.python_version(), "count": count, "group": group, "seed": seed}
    with reported_errors():
        for reward in rewards.split(","):
            if reward not in REWARDS:
                fix = f"choose from {', '.join(REWARDS)}"
                raise RecipeError(f"no benchmark for {reward!r}", where="--rewards", fix=fix)
            graders = REWARDS[reward](count, seed, group)
            seconds = best_of(repeats, {name: grader.full_marks for name, grader in graders.items()})
            ours = next(iter(seconds.values()))
            view = Table(title=f"{reward}: {count:,} completions, best pass")
            for column in ("grader", "CPU seconds", "µs each", "full marks", "time / ours"):
                view.add_column(column, justify="left" if column == "grader" else "right")
            report[reward] = {}
            for name, grader in graders.items():
                full, ratio = grader.full_marks(), seconds[name] / ours
                cells = (f"{seconds[name]:.3f}", f"{1e6 * seconds[name] / count:.2f}", f"{full:,}", f"{ratio:.2f}")
                view.add_row(name, *cells)
                figures = {"seconds": round(seconds[name], 4), "full_marks": full, "ratio": round(ratio, 3)}
                report[reward][name] = figures
            Console().print(view)
        print(json.dumps(report, indent=2))
        write_report(report, out)
