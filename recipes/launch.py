"""`python -m recipes.launch TASK [--option value] [key=value]`: resolve a recipe, check it, train, and sum up."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer
from rich.console import Console

from recipes import overview, preflight
from recipes.config import Recipe, accounting, check, dry_run, load, path_keys, remarks, to_yaml
from recipes.data.custom import ready
from recipes.data.prepare import make_missing
from recipes.engines import easyr1, verl
from recipes.engines.checkpoints import last_checkpoint
from recipes.errors import RecipeError, reported_errors
from recipes.monitor import agreement, rundir
from recipes.monitor.metrics import MetricsFollower, Sources, read_history, rollout_accuracy
from recipes.monitor.process import Child, shared_memory_cleared
from recipes.monitor.progress import Progress
from recipes.monitor.summary import shown, summary, table
from recipes.monitor.supervise import Limits, Outcome, supervise
from recipes.paths import ROOT, python_path
from recipes.preflight import data, resume

ENGINES: dict[str, ModuleType] = {"verl": verl, "easyr1": easyr1}
WATCHDOG_MINUTES = 20.0


def main(
    task: Annotated[str | None, typer.Argument(help="a recipe in configs/, or the path of one")] = None,
    words: Annotated[list[str] | None, typer.Argument(help="--option value or key=value, the last layer")] = None,
    help: Annotated[bool, typer.Option("--help", "-h", help="show tasks, options and variables")] = False,
    dry: Annotated[bool, typer.Option("--dry_run", "--dry-run", help="print what would run, and stop")] = False,
) -> None:
    """Train a recipe with GRPO on the real trainer."""
    console = Console(highlight=False)
    if help or task is None:
        with reported_errors():
            if task is None:
                overview.show(console)
            else:
                overview.show_options(console, task)
        raise typer.Exit(0 if help else 2)
    with reported_errors():
        recipe = load(task, arguments=words or ())
        if dry or dry_run():
            show_plan(recipe)
            return
        raise typer.Exit(run(recipe, console, words or ()))


def show_plan(recipe: Recipe) -> None:
    """What would run: the resolved YAML, the trainer's command, and the accounting; on plain standard output.

    Data that has to be converted is converted: the command names the rows.
    """
    said: list[str] = []
    recipe = ready(recipe, said.append, fetch=False)
    check(recipe)
    rows = data.rows(recipe)
    print(to_yaml(recipe))
    print(rundir.script(ENGINES[recipe.engine].command(recipe), trainer_variables(recipe, Path("metrics.jsonl"))))
    for name, value in accounting(recipe, rows).table():
        unknown = not rows and (name in ("training rows", "steps per epoch") or value == "0")
        print(f"# {name}: {'known when the data is made' if unknown else value}")
    for line in [*said, *(f"note: {remark}" for remark in remarks(recipe))]:
        print(f"# {line}")


def run(recipe: Recipe, console: Console, words: Sequence[str] = ()) -> int:
    """Prepare, check, train, and sum up. Returns the exit code; `words` are the arguments, for the next command."""
    experiment = recipe.trainer.experiment_name or recipe.name
    model = recipe.worker.actor.model.model_path
    own_model = recipe.source_of("worker.actor.model.model_path").by_user
    told = "tiny embedded model and data" if recipe.embedded_on and not own_model else model
    say(console, f"{recipe.name} on {recipe.engine}, {recipe.hardware}: {told}; experiment {experiment}")
    preflight.inspect_machine(recipe)
    make_missing(recipe, lambda line: say(console, line))
    recipe = ready(recipe, lambda line: say(console, line))
    for remark in preflight.inspect(recipe):
        say(console, f"note: {remark}")
    total = accounting(recipe, data.rows(recipe)).total_steps or None
    bounds = agreement.bounds(recipe, os.environ)
    with rundir.opened(experiment) as files:
        before = last_checkpoint(resume.folder(recipe))
        resumable = recipe.trainer.find_last_checkpoint and not recipe.trainer.load_checkpoint_path
        if before and resumable:
            agreement.refuse_spoilt(read_history(files.metrics), before.step, bounds, str(shown(before.folder.parent)))
        if before and total and resumable and before.step >= total:
            say(console, f"nothing to do: the experiment {experiment} has all {total} steps")
            outcome = None
        else:
            outcome = train(recipe, files, total, console)
        return close(recipe, files, total, outcome, console, words)


def trainer_variables(recipe: Recipe, metrics: Path) -> dict[str, str]:
    """What the trainer's environment has beyond the launcher's."""
    return {
        "PYTHONPATH": python_path(),
        **ENGINES[recipe.engine].environment(recipe),
        "VERL_FILE_LOGGER_PATH": str(metrics),
    }


def train(recipe: Recipe, files: rundir.RunFiles, total: int | None, console: Console) -> Outcome:
    """Start the trainer and watch it until it ends."""
    variables = trainer_variables(recipe, files.attempt)
    command = ENGINES[recipe.engine].command(recipe)
    limits = Limits.from_minutes(watchdog_minutes(os.environ))
    resume.record(recipe)
    offset = rundir.write(files, to_yaml(recipe), command, variables)
    say(console, f"the trainer's own output goes to {shown(files.log)}")
    rollouts = recipe.trainer.rollout_data_dir
    folder = Path(rollouts) if rollouts else None
    start = time.time()

    def accuracy(step: int) -> float | None:
        return rollout_accuracy(folder, step, since=start)

    sources = Sources(key.path for key in path_keys(recipe) if folder and key.key == "data.train_files")

    def by_source(step: int) -> dict[str, float]:
        return sources.accuracy(folder / f"{step}.jsonl") if folder else {}

    with shared_memory_cleared(), Progress(console, total, accuracy, by_source=by_source) as progress:
        progress.phase("the trainer starts: Python's imports and Ray")
        return supervise(
            Child(command, {**os.environ, **variables}, files.log, ROOT),
            files.log,
            offset,
            MetricsFollower(files.attempt, files.metrics),
            progress,
            limits,
            lambda step: folder is None or accuracy(step) is not None,
            agreement.rule(agreement.bounds(recipe, os.environ)),
        )


def close(
    recipe: Recipe,
    files: rundir.RunFiles,
    total: int | None,
    outcome: Outcome | None,
    console: Console,
    words: Sequence[str],
) -> int:
    """Say how it ended, and what to type next. Returns the exit code."""
    checkpoint = last_checkpoint(resume.folder(recipe))
    if outcome and outcome.exit_code:
        say_failure(outcome, files, console)
        if outcome.fault:
            if checkpoint:
                say(console, f"this run's checkpoints are not to be used: remove {shown(checkpoint.folder.parent)}")
        elif checkpoint:
            say(console, f"the run can be resumed from step {checkpoint.step}: the same command again")
        else:
            say(console, "no checkpoint was written yet: the same command starts again from the beginning")
        return outcome.exit_code
    commands = overview.next_commands(recipe, checkpoint, total, os.environ, words)
    say(console, table(summary(read_history(files.metrics), total, checkpoint, files.log, commands)))
    return 0


def say_failure(outcome: Outcome, files: rundir.RunFiles, console: Console) -> None:
    """Why a run ended early."""
    if outcome.left:
        say(console, f"warning: these processes could not be ended: {', '.join(map(str, outcome.left))}")
    if outcome.interrupted:
        say(console, f"stopped by {outcome.interrupted.name}")
        return
    if outcome.fault:
        say(console, f"error: {outcome.fault}")
        say(console, f"  log:   {shown(files.log)}")
        say(console, f"  fix:   {agreement.ADVICE}")
        return
    error = outcome.error
    if outcome.hung:
        say(console, f"error: the trainer hung and was stopped: {outcome.hung}")
    cause = error.error if error and error.error else ended(outcome.code)
    say(console, f"{'cause' if outcome.hung else 'error'}: {cause}")
    if error and error.frame:
        say(console, f"  where: {error.frame}{f' {error.speaker}' if error.speaker else ''}")
    say(console, f"  log:   {shown(files.log)}")
    if error and error.hint:
        say(console, f"  fix:   {error.hint}")


def ended(code: int) -> str:
    """An exit code in words; negative ones are signals."""
    if code == -signal.SIGKILL:
        return "the trainer was killed; if nobody did that, memory ran out: see `dmesg` and `free -h`"
    return (
        f"the trainer was ended by {signal.Signals(-code).name}"
        if code < 0
        else f"the trainer ended with exit code {code}"
    )


def watchdog_minutes(environ: Mapping[str, str]) -> float:
    """Minutes of idle silence before a run is given up; `WATCHDOG_MINUTES` overrides."""
    text = environ.get("WATCHDOG_MINUTES", "").strip()
    try:
        minutes = float(text) if text else WATCHDOG_MINUTES
    except ValueError:
        minutes = 0.0
    if minutes <= 0:
        raise RecipeError(
            f"WATCHDOG_MINUTES={text} is not a positive number", where="variable WATCHDOG_MINUTES", fix="for example 30"
        )
    return minutes


def say(console: Console, text: str) -> None:
    """One line, whatever its length, with no markup."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def cli() -> None:
    """Entry point."""
    application = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    application.command(context_settings={"help_option_names": [], "ignore_unknown_options": True})(main)
    application()


if __name__ == "__main__":
    cli()
