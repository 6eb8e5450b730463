"""The end of a run: the closing table, why it failed, and what to type next."""

from __future__ import annotations

import os
import re
import shlex
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from recipes.config import Recipe
from recipes.config.variables import read_arguments, variable_names
from recipes.engines.checkpoints import BEST, Best, Checkpoint, best_checkpoint, last_checkpoint
from recipes.paths import ROOT, relative_to_cwd, run_dir, script_command
from recipes.runs import model_card, rollout_mismatch
from recipes.runs.folder import RunFiles
from recipes.runs.metrics import Step, number, read_history, validations
from recipes.runs.supervise import Outcome

if TYPE_CHECKING:
    from rich.console import Console


def close(
    recipe: Recipe,
    files: RunFiles,
    total: int | None,
    outcome: Outcome | None,
    console: Console,
    task: str,
    overrides: Sequence[str],
) -> int:
    """Print how a run ended and what to type next; `outcome` is None where nothing was left to train.

    Returns:
        The exit code of the launcher.
    """
    place = Path(str(recipe.trainer.save_checkpoint_path))
    checkpoint = last_checkpoint(place)
    if outcome and outcome.exit_code:
        console.print("\n".join(failure(outcome, files.log, checkpoint)))
        return outcome.exit_code
    commands = next_commands(recipe, task, checkpoint, total, os.environ, overrides)
    if checkpoint:
        commands += model_card.closing_lines(recipe, checkpoint)
    history = read_history(files.metrics)
    console.print(table(summary(history, total, checkpoint, files.log, commands, best_checkpoint(place))))
    return 0


def summary(
    history: list[Step],
    total: int | None,
    checkpoint: Checkpoint | None,
    log: Path,
    next_commands: list[tuple[str, str]],
    best: Best | None = None,
) -> list[tuple[str, str]]:
    """The rows of the closing table.

    Args:
        history: all steps of the experiment, those of earlier attempts included.
        total: steps of the run, where known.
        next_commands: (what for, command).
        best: the kept best checkpoint.
    """
    done = max((step.step for step in history), default=0)
    rows = [("steps", f"{done} of {total}" if total else str(done))]
    for (measure, source), values in validations(history).items():
        (at, before), (then, after) = values[0], values[-1]
        later = f" -> {number(after)} (step {then})" if then != at else ""
        rows.append((f"validation {measure}", f"{source}: {number(before)} (step {at}){later}"))
    saved = str(relative_to_cwd(checkpoint.model or checkpoint.folder)) if checkpoint else "none was saved"
    rows.append(("checkpoint", saved))
    if best and checkpoint:
        kept = relative_to_cwd(checkpoint.folder.parent / BEST)
        rows.append(("best checkpoint", f"{kept} (step {best.step}, {best.chosen_by['metric']} {number(best.value)})"))
    return [*rows, ("log", str(relative_to_cwd(log))), *next_commands]


def table(rows: list[tuple[str, str]]) -> str:
    """Rows as aligned text. Lines are never broken, so that paths and commands can be copied."""
    width = max(len(name) for name, _ in rows)
    rule = "-" * (width + 2 + min(100, max(len(value) for _, value in rows)))
    return "\n".join([rule, *(f"{name:<{width}}  {value}" for name, value in rows), rule])


def launcher(task: str) -> str:
    """The command of a task or of a recipe by its path: its own launcher where it has exactly one, else the general."""
    execs = re.compile(rf'scripts/launch\.sh"? {re.escape(task)} "\$@"')
    launchers = [path for path in sorted(ROOT.glob("examples/*/*.sh")) if execs.search(path.read_text("utf-8"))]
    if len(launchers) == 1:
        return f"bash {relative_to_cwd(launchers[0])}"
    return f"bash {relative_to_cwd(ROOT / 'scripts' / 'launch.sh')} {shlex.quote(task)}"


def next_commands(
    recipe: Recipe,
    task: str,
    checkpoint: Checkpoint | None,
    total: int | None,
    environ: Mapping[str, str],
    overrides: Sequence[str] = (),
) -> list[tuple[str, str]]:
    """Return what a user may want next: the report, evaluating the checkpoint, and training on.

    Args:
        task: what the user named: a task, or the path of a recipe.
        total: steps of the run, where known.
        environ: the variables that the user set are repeated in the command, and so are the arguments, `overrides`.
    """
    name = recipe.trainer.experiment_name or recipe.name
    commands = [("report", script_command("monitor.py", "report", name))]
    if checkpoint and checkpoint.model:
        commands.append(("evaluate", script_command("eval.py", "reward", "--run", str(relative_to_cwd(run_dir(name))))))
    if checkpoint and total:
        names = sorted(name for name in variable_names() if environ.get(name) and name not in ("MAX_STEPS", "DRY_RUN"))
        given = "".join(f"{name}={shlex.quote(environ[name])} " for name in names)
        kept = {given.words: None for given in read_arguments(overrides) if given.key != "trainer.max_steps"}
        again = "".join(f" {shlex.quote(word)}" for part in kept for word in part)
        steps = 2 * max(total, checkpoint.step)  # a checkpoint may have more than this run was to make
        commands.append(("more steps", f"{given}MAX_STEPS={steps} {launcher(task)}{again}"))
    return commands


def failure(outcome: Outcome, log: Path, checkpoint: Checkpoint | None) -> list[str]:
    """Return why a run ended early, and how to go on, one message a line; `outcome` is that of a run that failed."""
    lines = []
    if outcome.left:
        lines.append(f"warning: these processes could not be ended: {', '.join(map(str, outcome.left))}")
    if outcome.interrupted:
        lines.append(f"stopped by {outcome.interrupted.name}")
    elif outcome.fault:
        lines += [f"error: {outcome.fault}", f"  log:   {relative_to_cwd(log)}", f"  fix:   {rollout_mismatch.ADVICE}"]
    else:
        lines += _trainer_error(outcome, log)
    if outcome.fault:
        if checkpoint:
            lines.append(
                f"this run's checkpoints are not to be used: remove {relative_to_cwd(checkpoint.folder.parent)}"
            )
    elif checkpoint:
        lines.append(f"the run can be resumed from step {checkpoint.step}: the same command again")
    else:
        lines.append("no checkpoint was written yet: the same command starts again from the beginning")
    return lines


def _trainer_error(outcome: Outcome, log: Path) -> list[str]:
    """The first real error of the log, where it was raised, and what to do."""
    error, lines = outcome.error, []
    if outcome.hung:
        lines.append(f"error: the trainer hung and was stopped: {outcome.hung}")
    cause = error.error if error and error.error else exit_reason(outcome.code)
    lines.append(f"{'cause' if outcome.hung else 'error'}: {cause}")
    if error and error.frame:
        lines.append(f"  where: {error.frame}{f' {error.speaker}' if error.speaker else ''}")
    lines.append(f"  log:   {relative_to_cwd(log)}")
    if error and error.hint:
        lines.append(f"  fix:   {error.hint}")
    return lines


def exit_reason(code: int) -> str:
    """An exit code in words. A signal is a negative code, or 128 and its number where a process in between exits so."""
    number = -code if code < 0 else code - 128
    if number == signal.SIGKILL:
        return "the trainer was killed; if nobody did that, memory ran out: see `dmesg` and `free -h`"
    if number in signal.valid_signals():
        return f"the trainer was ended by {signal.Signals(number).name}"
    return f"the trainer ended with exit code {code}"
