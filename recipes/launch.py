"""`python -m recipes.launch TASK [--option value] [key=value]`: load a recipe, check it, train, and sum up."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer
from rich.console import Console

from recipes import preflight, usage
from recipes.config import Recipe, accounting, dry_run, load, to_yaml
from recipes.data.custom import ready
from recipes.data.prepare import make_missing
from recipes.data.rows import row_count
from recipes.engines.checkpoints import best_checkpoint, last_checkpoint, withdraw_stop
from recipes.engines.easyr1 import translation as easyr1
from recipes.engines.verl import translation as verl
from recipes.errors import counted, reported_errors
from recipes.paths import ROOT, python_path, relative_to_cwd
from recipes.preflight import cluster, resume
from recipes.preflight.data_files import without_filter
from recipes.runs import folder as runs
from recipes.runs import model_card, rollout_mismatch
from recipes.runs.best import BestCheckpoint
from recipes.runs.health import Health
from recipes.runs.metrics import MetricsFollower, Step, mark_lost_step, per_token, read_history
from recipes.runs.process import Child, shared_memory_cleared
from recipes.runs.progress import Progress, estimate
from recipes.runs.responses import Responses
from recipes.runs.summary import failure, next_commands, summary, table
from recipes.runs.supervise import Limits, Outcome, supervise

ENGINES: dict[str, ModuleType] = {"verl": verl, "easyr1": easyr1}


def main(
    task: Annotated[str | None, typer.Argument(help="a recipe in configs/, or the path of one")] = None,
    overrides: Annotated[list[str] | None, typer.Argument(help="--option value or key=value, the last layer")] = None,
    help: Annotated[bool, typer.Option("--help", "-h", help="show tasks, options and variables")] = False,
    dry: Annotated[bool, typer.Option("--dry_run", help="print what would run, and stop")] = False,
) -> None:
    """Train a recipe with GRPO on the real trainer."""
    console = Console(highlight=False, markup=False, soft_wrap=True)
    with reported_errors():
        if help or task is None:
            usage.show(console) if task is None else usage.show_options(console, task)
            raise typer.Exit(0 if help else 2)
        recipe = load(task, arguments=overrides or ())
        if dry or dry_run(os.environ):
            raise typer.Exit(show_plan(recipe))
        raise typer.Exit(run(recipe, console, task, overrides or ()))


def run(recipe: Recipe, console: Console, task: str, overrides: Sequence[str] = ()) -> int:
    """Make the data, check, train, and sum up.

    Args:
        task, overrides: what the user typed, which the next command repeats.

    Returns:
        The exit code of the launcher.
    """
    console.print(preflight.heading(recipe))
    notes = [*verl.left_out(recipe), *preflight.check_before_data(recipe)]
    make_missing(recipe, console.print)
    recipe = ready(recipe, console.print)
    for note in [*notes, *preflight.run_checks(recipe)]:
        console.print(f"note: {note}")
    total = accounting(recipe, row_count(recipe)).total_steps or None
    with runs.opened(str(recipe.trainer.experiment_name)) as files:
        begin = resume.repaired(recipe)
        last = resume.steps_done(recipe)
        history = checked_history(recipe, files, last, console) if last else []
        outcome = None
        if total and last >= total:
            console.print(f"nothing to do: step {last} is saved, and the run has {counted(total, 'step')}")
        else:
            if total:
                console.print(estimate(recipe, total - last))
            outcome = train(recipe, files, begin, total, history, console)
        return close(recipe, files, total, outcome, console, task, overrides)


def checked_history(recipe: Recipe, files: runs.RunFiles, last: int, console: Console) -> list[Step]:
    """The steps up to the checkpoint of step `last`. Raises RecipeError where one of them saw another image in vLLM."""
    if mark_lost_step(files.metrics, last):
        console.print(f"note: step {last} was saved, but the run ended before it logged the step's metrics")
    history = [per_token(step, recipe) for step in read_history(files.metrics) if step.step <= last]
    place = relative_to_cwd(resume.folder(recipe))
    rollout_mismatch.refuse_checkpoint_after_mismatch(history, rollout_mismatch.bounds(recipe, os.environ), str(place))
    return history


def train(
    recipe: Recipe,
    files: runs.RunFiles,
    begin: resume.Start,
    total: int | None,
    history: list[Step],
    console: Console,
) -> Outcome:
    """Start the trainer and watch it until it ends; `history` has the steps that it goes on from."""
    limits = Limits.from_environment(os.environ)
    command = ENGINES[recipe.engine].command(without_filter(resume.for_trainer(recipe, begin), console.print))
    variables = trainer_variables(recipe, files.attempt)
    cluster.wait_for_nodes(recipe, console.print)
    resume.record(recipe, begin)
    withdraw_stop(resume.folder(recipe))
    offset = runs.begin_attempt(files, to_yaml(recipe), command, variables)
    for note in recipe.unread:  # the last lines before hours of training: a mistyped MAX_STEPS shows in the number
        console.print(f"note: {note}; the run makes {counted(total, 'step') if total else 'all steps'}")
    console.print(f"the trainer's own output goes to {relative_to_cwd(files.log)}")

    written = Responses.of(recipe.trainer, since=time.time())
    responses = written.training.of if recipe.trainer.rollout_data_dir else None
    on_step: list[Callable[[Step], str | None]] = [
        partial(rollout_mismatch.disagreement, limits=rollout_mismatch.bounds(recipe, os.environ)),
        Health(recipe, history, written, console.print).add_step,
        *([BestCheckpoint(recipe, console.print).add_step] if recipe.trainer.keep_best else []),
    ]
    with shared_memory_cleared(), Progress(console, total, responses) as progress:
        progress.phase("the trainer starts: Python's imports and Ray")
        return supervise(
            child=Child(command, {**os.environ, **variables}, files.log, ROOT),
            log=files.log,
            offset=offset,
            metrics=MetricsFollower(files.attempt, files.metrics, recipe),
            progress=progress,
            limits=limits,
            on_step=on_step,
        )


def trainer_variables(recipe: Recipe, metrics: Path) -> dict[str, str]:
    """Return what the trainer's environment has beyond the launcher's."""
    variables = {
        "PYTHONPATH": python_path(),
        **ENGINES[recipe.engine].environment(recipe, os.environ),
        "VERL_FILE_LOGGER_PATH": str(metrics),
    }
    return {**variables, **cluster.job_variables(variables)}


def close(
    recipe: Recipe,
    files: runs.RunFiles,
    total: int | None,
    outcome: Outcome | None,
    console: Console,
    task: str,
    overrides: Sequence[str],
) -> int:
    """Print how the run ended and what to type next. Returns the exit code."""
    checkpoint = last_checkpoint(resume.folder(recipe))
    if outcome and outcome.exit_code:
        console.print("\n".join(failure(outcome, files.log, checkpoint)))
        return outcome.exit_code
    commands = next_commands(recipe, task, checkpoint, total, os.environ, overrides)
    if checkpoint:
        commands += model_card.closing_lines(recipe, checkpoint)
    best = best_checkpoint(resume.folder(recipe))
    console.print(table(summary(read_history(files.metrics), total, checkpoint, files.log, commands, best)))
    return 0


def show_plan(recipe: Recipe) -> int:
    """Print what would run: the resolved YAML, the trainer's command, the accounting, and what the checks say.

    Data that has to be converted is converted, since the command names the rows.

    Returns:
        The exit code: 2 where a check would stop the run.
    """
    notes = [preflight.heading(recipe)]
    remarks = [*verl.left_out(recipe), *preflight.check_before_data(recipe, plan_only=True)]
    notes += [f"note: {remark}" for remark in remarks]
    recipe = ready(recipe, notes.append, fetch=False)
    print(to_yaml(recipe))
    print(runs.script(ENGINES[recipe.engine].command(recipe), trainer_variables(recipe, Path("metrics.jsonl"))))
    rows = row_count(recipe)
    plan = accounting(recipe, rows)
    for name, value in plan.table():
        unknown = not rows and (name in ("training rows", "steps per epoch") or value == "0")
        print(f"# {name}: {'known when the data is made' if unknown else value}")
    if plan.total_steps:
        notes.append(estimate(recipe, plan.total_steps - resume.steps_done(recipe)))
    findings = preflight.dry(recipe)
    for line in [*notes, *(f"note: {remark}" for remark in findings.remarks)]:
        print(f"# {line}")
    for error in findings.errors:
        print(f"error: {error}", file=sys.stderr)
    return 2 if findings.errors else 0


def cli() -> None:
    """Entry point."""
    application = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    application.command(context_settings={"help_option_names": [], "ignore_unknown_options": True})(main)
    application()


if __name__ == "__main__":
    cli()
