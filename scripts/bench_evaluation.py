"""Time an evaluation: what scoring and reporting cost, whether memory stays flat, and a real probe of a tiny model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from recipes.interpreter import ensure

ensure()

import typer
from rich.console import Console
from rich.table import Table

from recipes.benchmarks.evaluation import measure, probe_seconds
from recipes.errors import reported_errors

MINUTES = 3.0
OWN_SHARE = 0.05

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def main(
    responses: Annotated[int, typer.Option("--responses", help="the largest number of cached responses")] = 100_000,
    task: Annotated[str, typer.Option("--task", help="task of the real probe")] = "countdown",
    model_path: Annotated[
        str, typer.Option("--model_path", help="model of the real probe; empty: leave it out")
    ] = "recipes/tasks/countdown/tiny",
    questions: Annotated[int, typer.Option("--questions", help="questions of the real probe")] = 256,
    rollout_n: Annotated[int, typer.Option("--rollout_n", help="answers to each")] = 16,
) -> None:
    """Run the benchmarks; the real probe needs the task's data and vLLM."""
    console = Console()
    with reported_errors():
        table = Table(title="From cached responses to the report", title_justify="left")
        for name in ("responses", "CPU seconds", "microseconds each", "peak MiB"):
            table.add_column(name, justify="right")
        for cost in measure(responses // 10, responses):
            table.add_row(
                f"{cost.responses:,}", f"{cost.seconds:.1f}", f"{cost.microseconds_each:.0f}", f"{cost.peak_mib:.0f}"
            )
        console.print(table)
        if model_path:
            _probe(console, task, model_path, questions, rollout_n)


def _probe(console: Console, task: str, model: str, questions: int, n: int) -> None:
    seconds = probe_seconds(task, model, questions, n)
    own = sum(value for name, value in seconds.items() if name not in ("generate", "whole"))
    share = own / seconds["whole"]
    around = seconds["whole"] - seconds["generate"] - own
    minutes = seconds["whole"] / 60
    console.print(f"probe of {questions} questions x {n}: " + ", ".join(f"{k} {v:.1f} s" for k, v in seconds.items()))
    console.print(f"Python's start and end, and the imports before the first stage: {around:.1f} s")
    console.print(
        f"besides generation {share:.1%} (at most {OWN_SHARE:.0%}): {'kept' if share <= OWN_SHARE else 'MISSED'}"
    )
    console.print(f"whole {minutes:.1f} min (at most {MINUTES:.0f}): {'kept' if minutes <= MINUTES else 'MISSED'}")


if __name__ == "__main__":
    app()
