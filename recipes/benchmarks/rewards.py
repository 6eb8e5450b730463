"""Time the rewards: a thousand verdicts of each reward file and of each source of the custom kit."""

from __future__ import annotations

import itertools
import json
import platform
import timeit
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from recipes.data.rewards import load_reward
from recipes.errors import RecipeError, reported_errors

THOUGHT = "Take the 3 apples and add the 5 that came later, which makes 8 in all. " * 14
"""About a thousand characters of reasoning before each answer."""
PROGRAM = "```python\ndef add(a, b):\n    return a + b\n```"

CASES: dict[str, tuple[str, str, str]] = {
    "countdown": ("countdown", '{"target": 24, "numbers": [3, 8, 1]}', "<answer>3 * 8 * 1</answer>"),
    "gsm8k": ("gsm8k", "72", "#### 72"),
    "number_game": ("number_game", "2", "Answer: 2"),
    "math_reasoning": ("dispatch", "72", "#### 72"),
    "math": ("dispatch", "\\frac{1}{@}", "\\boxed{\\frac{2}{2 \\cdot @}}"),
    "qa": ("dispatch", "Denver Broncos", "<answer>the Denver Broncos</answer>"),
    "classification": ("dispatch", '["positive", "negative"]', "<answer>positive</answer>"),
    "code": ("dispatch", '{"asserts": ["assert add(1, 2) == 3"]}', PROGRAM),
}
"""Source -> reward file, ground truth, and the end of a right response.

@ is a new number each time, because math-verify's verdicts are kept."""
SLOW = ("math", "code")
"""Sources with a process besides this one: a tenth of the verdicts."""


def timed(source: str, count: int, repeats: int) -> float | None:
    """Return the milliseconds of one verdict by the clock, or None where this machine lacks what the source needs.

    Args:
        source: one of `CASES`.
        count: verdicts per pass; each response differs from the one before.
        repeats: passes; the fastest counts.

    Raises:
        RecipeError: a response is judged wrong.
    """
    file, truth, end = CASES[source]
    reward = load_reward(f"reward_functions/{file}.py")
    if file == "dispatch" and reward.check_sources([(source, truth)]):
        return None

    numbers = itertools.count(3)

    def judge() -> None:
        for number in map(str, itertools.islice(numbers, count)):
            response = f"<think>{number} {THOUGHT}</think>\n{end.replace('@', number)}"
            result = reward.compute_score(source, response, truth.replace("@", number))
            if result["score"] != 1.0:
                raise RecipeError(f"a right response scores {result}", where=source, fix="mend the case or the reward")

    judge()  # the first verdicts start helpers and compile expressions
    return 1000 * min(timeit.repeat(judge, number=1, repeat=repeats)) / count


def command(
    rewards: Annotated[str, typer.Option(help=f"Sources, separated by commas: {', '.join(CASES)}.")] = ",".join(CASES),
    count: Annotated[int, typer.Option(min=1, help="Verdicts per pass; a tenth for math and code.")] = 1000,
    repeats: Annotated[int, typer.Option(min=1, help="Passes; the fastest counts.")] = 3,
    out: Annotated[Path | None, typer.Option(help="JSON file for the figures.")] = None,
) -> None:
    """Time a thousand verdicts of each reward."""
    report: dict[str, object] = {"python": platform.python_version(), "count": count}
    table = Table("source", "ms a verdict", title="Rewards: responses of a thousand characters, right ones")
    with reported_errors():
        for source in rewards.split(","):
            if source not in CASES:
                raise RecipeError(f"no source {source!r}", where="--rewards", fix=f"choose from {', '.join(CASES)}")
            each = timed(source, max(1, count // 10) if source in SLOW else count, repeats)
            table.add_row(source, "not on this machine" if each is None else f"{each:.3f}")
            report[source] = each
        Console().print(table)
        print(json.dumps(report))
        if out:
            out.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
