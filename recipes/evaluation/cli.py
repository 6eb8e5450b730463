"""The command line of the evaluation, and of the logs of a run's completions."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from recipes.errors import RecipeError, counted, reported_errors
from recipes.evaluation.options import MODES, Options
from recipes.progress_bar import progress_bar

if TYPE_CHECKING:
    from recipes.evaluation.completions import RolloutStep
    from recipes.evaluation.result import Result

COLOURS = {"good": "green", "weak": "yellow", "bad": "red", "plain": "cyan"}
MOST_LINES = 20
WIDTH = 130


def make_app(task: str | None = None) -> typer.Typer:
    """Make the application for one task, or with None for any, which the first argument names."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(help=_help(task))(command(task))
    return app


def command(task: str | None = None) -> Callable[..., None]:
    """Return the command for one task, or with None for any."""

    # Options may stand before or after the word `analyse` or `reward`, so that word is an argument and no subcommand.
    def main(**values: Any) -> None:
        options = Options(**values)
        with reported_errors():
            if task and options.task not in ("", task):
                raise RecipeError(
                    f"{options.task} is neither {' nor '.join(MODES)}", where="the argument", fix="see --help"
                )
            if task and not options.task:
                options = replace(options, arguments=[task, *(options.arguments or [])])
            evaluate(options)

    # typer reads the options from a function's signature; they are declared once, as the fields of `Options`.
    hints = get_type_hints(Options, include_extras=True)
    fields = inspect.signature(Options).parameters.values()
    vars(main)["__signature__"] = inspect.Signature([each.replace(annotation=hints[each.name]) for each in fields])
    main.__annotations__ = hints
    return main


def _help(task: str | None) -> str:
    script = f"python scripts/eval_{task}.py" if task else "python scripts/eval.py countdown"
    last = "" if task else "\npython scripts/eval.py --run artifacts/runs/countdown"
    return (
        f"Measure a model on {task or 'a task'}, compare it with its base (--base_model_path), or probe it for signal."
        "\n\n"
        f"\b\n{script} --model_path M analyse --rollout_n 16"
        f"\n{script} --model_path M --base_model_path BASE --limit 100{last}"
    )


def evaluated(options: Options) -> tuple[Result, Path]:
    """Plan and run, with progress and notes on standard error. Returns the result and the report's folder."""
    from recipes.evaluation.evaluate import run
    from recipes.evaluation.plan import plan_of

    console = Console(stderr=True)

    def log(line: str) -> None:
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    plan = plan_of(options, log)
    for subject in plan.subjects:
        if subject.note:
            log(f"note: {subject.note}")
    return run(plan, progress_of)


def evaluate(options: Options) -> None:
    """Plan, run and print; progress and notes on standard error, results on standard output."""
    try:
        result, folder = evaluated(options)
    except KeyboardInterrupt:
        print("stopped; what was generated is kept: the same command goes on from there", file=sys.stderr)
        raise typer.Exit(130) from None
    print_result(result, folder)


@contextmanager
def progress_of(text: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar in the form that `recipes.evaluation.evaluate.run` takes."""
    with progress_bar() as bars:
        bar = bars.add_task(text, total=total)
        yield lambda count: bars.advance(bar, count)


def print_result(result: Result, folder: Path) -> None:
    """The table of figures, the verdict and the paths, on standard output."""
    from recipes.evaluation.metrics import metric_of
    from recipes.evaluation.report.page import table

    console = _console()
    figures = Table(title=f"{result.task}: {result.asked}", title_justify="left")
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
    for note in [*_notes(result), f"report: {folder / 'report.html'}"]:
        console.print(note, markup=False, highlight=False, soft_wrap=True)


def _console() -> Console:
    """Standard output; in a pipe or a file, wide enough for the table of two models."""
    console = Console()
    return console if console.is_terminal else Console(width=WIDTH)


def _notes(result: Result) -> list[str]:
    notes = []
    if result.probe:
        groups, count = result.sampled.groups, result.sampled.questions
        notes.append("groups: " + ", ".join(f"{groups[outcome] / count:.1%} {outcome}" for outcome in groups))
    if result.comparison and (reach := result.comparison.reach):
        notes.append(
            f"within {counted(reach.n, 'sample')}: {counted(len(reach.newly_solved), 'question')} newly solved, "
            f"{len(reach.no_longer_solved)} no longer"
        )
    notes += [
        f"the reward could not judge {counted(failed, 'response')} ({name}), counted as failed with score 0; "
        f"the first: {first}"
        for name, failed, first in result.failures
    ]
    if result.filtered:
        kept = result.filtered
        notes.append(
            f"filtered: {kept.path}, {counted(kept.kept, 'row')} kept, {kept.dropped} dropped "
            f"({kept.not_probed} kept without a probe)"
        )
    return notes


def collect(rollouts: Path, task: str, reward_path: str, output: Path | None) -> None:
    """Write the completion logs of a run's rollouts and print one line per step.

    Args:
        rollouts: a folder of dumps, or one dump.
        task: names the recipe whose reward scores again; empty: take the logged scores.
        reward_path: a reward file instead of the recipe's.
        output: folder of the logs; None: `completions/<rollouts' name>` beside the rollouts.
    """
    from recipes.config import load
    from recipes.evaluation.completions import split_rollouts
    from recipes.evaluation.scoring import Reward, recipe_reward

    if not rollouts.exists():
        raise RecipeError(f"there is no {rollouts}", where="the first argument", fix="name a run's rollouts folder")
    reward = Reward(reward_path) if reward_path else recipe_reward(load(task)) if task else None
    target = output or rollouts.absolute().parent / "completions" / rollouts.stem
    _print_steps(split_rollouts(rollouts, target, reward, task), target)


def _print_steps(steps: list[RolloutStep], target: Path) -> None:
    figures = Table()
    for name in ("step", "mean score", "success", "fail", "scored", "score differs"):
        figures.add_column(name, justify="right")
    for step in steps:
        numbers = (*(step.counts[kind] for kind in ("success", "fail", "scored")), step.differs)
        figures.add_row(step.step, f"{step.mean_score:.3f}", *map(str, numbers))
    console = _console()
    console.print(figures)
    lines = [f"step {step.step}: the last line is half written and left out" for step in steps if step.torn]
    if any(step.differs for step in steps):
        lines.append(
            "some logged scores are not what the reward file gives now: it changed since, or training used another"
        )
    for line in [*lines, f"logs: {target}"]:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
