"""`python -m recipes.launch TASK [--option value] [key=value]`: load a recipe, check it, train, and sum up."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import IO, Annotated, cast

import typer
from rich.console import Console

from recipes import preflight, usage
from recipes.config import Recipe, load, to_yaml, total_steps
from recipes.config.accounting import accounting
from recipes.config.variables import control
from recipes.data.custom import ready
from recipes.data.rows import row_count
from recipes.engines.easyr1 import translation as easyr1
from recipes.engines.verl import translation as verl
from recipes.errors import counted, raise_together, reported_errors
from recipes.paths import python_path, run_dir
from recipes.preflight import cluster, resume
from recipes.preflight import plan as planning
from recipes.preflight.machine import make_usable
from recipes.runs import folder as runs
from recipes.runs.summary import close
from recipes.runs.supervise import resumed_history, train, watchdog_seconds
from recipes.runs.terminal import LastingOutput

ENGINES: dict[str, ModuleType] = {"verl": verl, "easyr1": easyr1}


def main(
    task: Annotated[str | None, typer.Argument(help="a recipe in configs/, or the path of one")] = None,
    overrides: Annotated[list[str] | None, typer.Argument(help="--option value or key=value, the last layer")] = None,
    help: Annotated[bool, typer.Option("--help", "-h", help="show tasks, options and variables")] = False,
    dry: Annotated[bool, typer.Option("--dry_run", help="print what would run, and stop")] = False,
    plan: Annotated[bool, typer.Option("--plan", help="print one screen on what would run, and stop")] = False,
) -> None:
    """Train a recipe with GRPO on the real trainer."""
    console = Console(highlight=False, markup=False, soft_wrap=True)
    with reported_errors():
        if help or task is None:
            usage.show(console) if task is None else usage.show_options(console, task)
            raise typer.Exit(0 if help else 2)
        task = task.removeprefix("config=")  # as EasyR1 has it
        recipe = load(task, arguments=overrides or ())
        if plan:
            raise typer.Exit(planning.show(console, recipe, task, os.environ, overrides or ()))
        if dry or control(os.environ, "DRY_RUN"):
            raise typer.Exit(show_plan(recipe))
        console.file = cast("IO[str]", LastingOutput(run_dir(recipe.experiment) / "launcher.log"))
        raise typer.Exit(run(recipe, console, task, overrides or ()))


def run(recipe: Recipe, console: Console, task: str, overrides: Sequence[str] = ()) -> int:
    """Make the data, check, train, and sum up; return the exit code of the launcher.

    `task` and `overrides` are what the user typed; the commands printed at the end repeat it.
    """
    limit_s = watchdog_seconds(os.environ)
    console.print(preflight.heading(recipe))
    notes = [*make_usable(os.environ), *verl.notes(recipe), *preflight.check_before_data(recipe)]
    recipe = ready(recipe, console.print)
    with runs.lock_run(recipe.experiment, resume.folder(recipe)) as files:
        found = preflight.findings(recipe, skip=("gpus",))  # which were asked for before the data
        raise_together(found.errors)
        for note in [*notes, *found.remarks]:
            console.print(f"note: {note}")
        total, last = total_steps(recipe, row_count(recipe)) or None, resume.steps_done(recipe, found.start.checkpoint)
        history, outcome = resumed_history(recipe, files, last), None
        if total and last >= total:
            console.print(f"nothing to do: step {last} is saved, and the run has {counted(total, 'step')}")
        else:
            cluster.wait_for_nodes(recipe, console.print)
            trained = resume.begin_attempt(recipe, found.start, console.print)
            command, variables = ENGINES[recipe.engine].command(trained), trainer_variables(recipe, files.attempt)
            outcome = train(recipe, files, command, variables, history, total, limit_s, console)
        return close(recipe, files, total, outcome, console, task, overrides)


def trainer_variables(recipe: Recipe, metrics: Path) -> dict[str, str]:
    """Return the environment variables that the trainer gets in addition to the launcher's."""
    variables = {
        "PYTHONPATH": python_path(),
        **ENGINES[recipe.engine].environment(recipe, os.environ),
        "VERL_FILE_LOGGER_PATH": str(metrics),
    }
    return {**variables, **cluster.job_variables(variables)}


def show_plan(recipe: Recipe) -> int:
    """Print what would run: the resolved YAML, the trainer's command, the accounting, and what the checks say.

    The user's data is converted where that is needed, since the command names the converted files. Returns the exit
    code, 2 where a check would stop the run.
    """
    notes = [preflight.heading(recipe)]
    remarks = [*verl.notes(recipe), *preflight.check_before_data(recipe, plan_only=True)]
    notes += [f"note: {remark}" for remark in remarks]
    recipe = ready(recipe, notes.append, make=False)
    print(to_yaml(recipe))
    print(runs.script(ENGINES[recipe.engine].command(recipe), trainer_variables(recipe, Path("metrics.jsonl"))))
    rows = row_count(recipe)
    for name, value in accounting(recipe, rows).items():
        unknown = not rows and (name in ("training rows", "steps per epoch") or value == "0")
        print(f"# {name}: {'known when the data is made' if unknown else value}")
    findings = preflight.dry(recipe)
    for line in [*notes, *(f"note: {remark}" for remark in findings.remarks)]:
        print(f"# {line}")
    for error in findings.errors:
        print(f"error: {error}", file=sys.stderr)
    return 2 if findings.errors else 0


if __name__ == "__main__":
    usage.run(main)
