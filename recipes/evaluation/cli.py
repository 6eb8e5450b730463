"""The command line of the evaluation: it plans, runs and prints."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from recipes.errors import reported_errors
from recipes.evaluation.options import Options

if TYPE_CHECKING:
    from recipes.evaluation.report import Result

COLOURS = {"good": "green", "weak": "yellow", "bad": "red", "plain": "cyan"}
WIDTH = 130


def main(**values: Any) -> None:
    """Measure a model on a task, compare it with its base (--base_model_path), or probe it for signal.

    What no option says is the recipe's, or with --run the run's.

    \b
    python scripts/eval.py countdown --model_path M analyse --rollout_n 16
    python scripts/eval.py countdown --model_path M --base_model_path BASE --limit 100
    python scripts/eval.py --run artifacts/runs/countdown
    """
    with reported_errors():
        try:
            result, folder = run_evaluation(Options(**values))
        except KeyboardInterrupt:
            print("stopped; what was generated is kept: the same command goes on from there", file=sys.stderr)
            raise typer.Exit(130) from None
        print_result(result, folder)


# typer reads the options from a function's signature; they are declared once, as the fields of `Options`. They may
# stand before or after the word `analyse` or `reward`, so that word is an argument and no subcommand.
_HINTS = get_type_hints(Options, include_extras=True)
_FIELDS = inspect.signature(Options).parameters.values()
vars(main)["__signature__"] = inspect.Signature([each.replace(annotation=_HINTS[each.name]) for each in _FIELDS])
main.__annotations__ = _HINTS
app = typer.Typer(add_completion=False, rich_markup_mode=None)
app.command()(main)


def run_evaluation(options: Options) -> tuple[Result, Path]:
    """Plan and run, with progress and notes on standard error; returns the result and the report's folder."""
    from recipes.evaluation.evaluate import run
    from recipes.evaluation.plan import plan_of

    console = Console(stderr=True)

    def log(line: str) -> None:
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    plan = plan_of(options, log)
    for subject in plan.subjects:
        if subject.note:
            log(f"note: {subject.note}")
    return run(plan)


def print_result(result: Result, folder: Path) -> None:
    """Print the table of figures, the verdicts, the notes and the report's path on standard output."""
    from recipes.evaluation.report import table
    from recipes.responses.measures import metric_of

    console = Console()
    if not console.is_terminal:  # in a pipe or a file, wide enough for the table of two models
        console = Console(width=WIDTH)
    figures = Table(title=f"{result.task}: {result.counted_questions}", title_justify="left")
    figures.add_column("figure")
    for label in [*result.models, "trained - base", "p"] if result.comparison else result.models:
        figures.add_column(label, justify="right")
    for line in table(result):
        cells = [
            f"{each.value} [dim]({each.low} to {each.high})[/dim]" if each.low else each.value for each in line.cells
        ]
        figures.add_row(line.label, *cells, *([line.p] if result.comparison else []))
    console.print(figures)
    for verdict in result.probe.verdicts if result.probe else ():
        console.print(Text(f"{metric_of(verdict.metric).label.lower()}: {verdict.text}", style=COLOURS[verdict.level]))
    console.print(Text(result.headline.text, style=f"bold {COLOURS[result.headline.level]}"))
    for note in [*result.notes, f"report: {folder / 'report.html'}"]:
        console.print(note, markup=False, highlight=False, soft_wrap=True)
