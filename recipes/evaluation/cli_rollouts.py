"""What `scripts/collect_completions.py` does: completion logs from rollouts, and a table of what is in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from recipes.errors import RecipeError
from recipes.evaluation.defaults import from_recipe
from recipes.evaluation.rollouts import split_rollouts
from recipes.evaluation.scoring import Reward

MOST_LINES = 20


def collect(rollouts: Path, task: str, reward_path: str, output: Path | None) -> None:
    """Write the logs and print one line per step.

    Args:
        rollouts: a folder of dumps, or one dump.
        task: names the recipe whose reward scores again; empty: take the logged scores.
        reward_path: a reward file instead of the recipe's.
        output: folder of the logs; None: `completions/<rollouts' name>` beside the rollouts.
    """
    if not rollouts.exists():
        raise RecipeError(f"there is no {rollouts}", where="the first argument", fix="name a run's rollouts folder")
    target = output or rollouts.absolute().parent / "completions" / rollouts.stem
    steps = split_rollouts(rollouts, target, _reward(task, reward_path), task)
    _print(steps, target)


def _reward(task: str, reward_path: str) -> Reward | None:
    if reward_path:
        return Reward(reward_path)
    if not task:
        return None
    defaults = from_recipe(task)
    return Reward(defaults.reward, defaults.reward_arguments)


def _print(steps: list[dict[str, Any]], target: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for name in ("step", "mean score", "success", "fail", "suspicious", "score differs"):
        table.add_column(name, justify="right")
    for step in steps:
        numbers = (step["success"], step["fail"], step["suspicious"], step["differs"])
        table.add_row(step["step"], f"{step['mean_score']:.3f}", *map(str, numbers))
    console = Console()
    console.print(table)
    totals = {rule: sum(step["flags"][rule] for step in steps) for rule in steps[0]["flags"]}
    raised = ", ".join(f"{rule} {count}" for rule, count in totals.items() if count)
    if raised:
        console.print(f"suspicious: {raised}", markup=False, highlight=False)
    same = [(step["step"], found) for step in steps for found in step["same_answer"]]
    for number, found in same[:MOST_LINES]:
        line = f"step {number}: {found['answer']!r} is a rewarded answer in {found['share']:.0%} of the groups"
        console.print(line, markup=False, highlight=False)
    if any(step["differs"] for step in steps):
        console.print(
            "some logged scores are not what the reward file gives now: it changed since, or training used another"
        )
    console.print(f"logs: {target}", markup=False, highlight=False, soft_wrap=True)
