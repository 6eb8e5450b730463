"""The end of a run: the closing table, why it failed, what to type next, and the model card."""

from __future__ import annotations

import os
import re
import shlex
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from recipes.config import Recipe, path_keys, to_yaml
from recipes.config.checks import ENGINES
from recipes.config.resolve import in_words
from recipes.config.rewards import shown_reward
from recipes.config.variables import read_arguments, split_overlays, variable_names
from recipes.data.manifests import find_manifest
from recipes.drawing import templates
from recipes.engines.checkpoints import BEST, Checkpoint, best_checkpoint, last_checkpoint
from recipes.files import write_whole
from recipes.paths import ROOT, artifacts, git_commit, relative_to_cwd, run_dir, script_command
from recipes.runs import rollout_mismatch
from recipes.runs.compare import mean_of, shown, title
from recipes.runs.folder import RunFiles
from recipes.runs.log import TrainerError
from recipes.runs.metrics import Step, number, read_history, validations
from recipes.runs.responses import of_last_measure, read_validations
from recipes.runs.supervise import Outcome

if TYPE_CHECKING:
    from rich.console import Console

CARD = "README.md"
"""The name under which hubs show a model's card."""


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
    checkpoint, best = last_checkpoint(place), best_checkpoint(place)
    if outcome and outcome.exit_code:
        console.print("\n".join(failure(outcome, files.log, checkpoint)))
        return outcome.exit_code
    rows = results(read_history(files.metrics), total)
    saved = str(relative_to_cwd(checkpoint.model or checkpoint.folder)) if checkpoint else "none was saved"
    rows.append(("checkpoint", saved))
    if best:
        kept = relative_to_cwd(place / BEST)
        rows.append(("best checkpoint", f"{kept} (step {best.step}, {best.chosen_by['metric']} {number(best.value)})"))
    rows += [("log", str(relative_to_cwd(files.log)))]
    rows += next_commands(recipe, task, checkpoint, total, os.environ, overrides)
    if checkpoint and checkpoint.model:
        model = relative_to_cwd(checkpoint.model)
        rows.append(("serve", script_command("serve.py", *serve_arguments(recipe, model))))
        rows.append(("upload", shlex.join(["hf", "upload", "OWNER/NAME", str(model)])))
        rows.append(("model card", str(relative_to_cwd(write_card(recipe, checkpoint.model, checkpoint.step)))))
    # Lines are never broken, so that paths and commands can be copied.
    width = max(len(name) for name, _ in rows)
    console.print("\n".join(["-" * 80, *(f"{name:<{width}}  {value}" for name, value in rows), "-" * 80]))
    return 0


def results(history: list[Step], total: int | None) -> list[tuple[str, str]]:
    """The steps of the experiment, those of earlier attempts included, and its first and last validation."""
    done = max((step.step for step in history), default=0)
    rows = [("steps", f"{done} of {total}" if total else str(done))]
    for (measure, source), values in validations(history).items():
        (at, before), (then, after) = values[0], values[-1]
        later = f" -> {number(after)} (step {then})" if then != at else ""
        rows.append((f"validation {measure}", f"{source}: {number(before)} (step {at}){later}"))
    return rows


def launcher(task: str) -> str:
    """The command for a task, or for a recipe's path: its own script if exactly one exists, else the general one."""
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
    """Return what a user may want next: the report, evaluating the checkpoint, and training for more steps.

    Args:
        task: what the user named: a task, or the path of a recipe.
        total: steps of the run, where known.
        environ: environment variables; those that a run reads are repeated in the command for more steps.
        overrides: the launcher's arguments, repeated in that command too.
    """
    name = recipe.trainer.experiment_name or recipe.name
    commands = [("report", script_command("monitor.py", "report", name))]
    if checkpoint and checkpoint.model:
        commands.append(("evaluate", script_command("eval.py", "reward", "--run", str(relative_to_cwd(run_dir(name))))))
    if checkpoint and total:
        names = sorted(name for name in variable_names() if environ.get(name) and name not in ("MAX_STEPS", "DRY_RUN"))
        given = "".join(f"{name}={shlex.quote(environ[name])} " for name in names)
        overlays, words = split_overlays(overrides)
        kept = {given.words: None for given in read_arguments(words) if given.key != "trainer.max_steps"}
        again = "".join(f" {shlex.quote(word)}" for part in (overlays, *kept) for word in part)
        steps = 2 * max(total, checkpoint.step)  # the checkpoint's step may exceed this run's total
        commands.append(("more steps", f"{given}MAX_STEPS={steps} {launcher(task)}{again}"))
    return commands


def failure(outcome: Outcome, log: Path, checkpoint: Checkpoint | None) -> list[str]:
    """Return why a run ended early, and how to go on, one message a line; for an `outcome` with a nonzero exit code."""
    if outcome.interrupted:
        lines = [f"stopped by {outcome.interrupted.name}"]
    elif outcome.fault:
        lines = [f"error: {outcome.fault}", f"  log:   {relative_to_cwd(log)}", f"  fix:   {rollout_mismatch.ADVICE}"]
    else:
        lines = _trainer_error(outcome, log)
    if outcome.fault and checkpoint:
        lines.append(f"this run's checkpoints are not to be used: remove {relative_to_cwd(checkpoint.folder.parent)}")
    elif checkpoint:
        lines.append(f"the run can be resumed from step {checkpoint.step}: the same command again")
    else:
        lines.append("no checkpoint was written yet: the same command starts again from the beginning")
    return lines


def _trainer_error(outcome: Outcome, log: Path) -> list[str]:
    """The first real error of the log, where it was raised, and what to do."""
    error = outcome.error or TrainerError()
    lines = [f"error: the trainer hung and was stopped: {outcome.hung}"] if outcome.hung else []
    lines.append(f"{'cause' if outcome.hung else 'error'}: {error.error or exit_reason(outcome.code)}")
    if error.frame:
        lines.append(f"  where: {error.frame}")
    lines.append(f"  log:   {relative_to_cwd(log)}")
    if error.hint:
        lines.append(f"  fix:   {error.hint}")
    return lines


def exit_reason(code: int) -> str:
    """An exit code in words. A signal is a negative code, or 128 + its number where a process in between reports it."""
    number = -code if code < 0 else code - 128
    if number == signal.SIGKILL:
        return "the trainer was killed; if nobody did that, memory ran out: see `dmesg` and `free -h`"
    if number in signal.valid_signals():
        return f"the trainer was ended by {signal.Signals(number).name}"
    return f"the trainer ended with exit code {code}"


def serve_arguments(recipe: Recipe, model: Path) -> list[str]:
    """Arguments of `vllm serve` for a checkpoint, with as much context as the run trained with."""
    return [str(model), "--served-model-name", recipe.name, "--max-model-len", str(recipe.longest)]


def write_card(recipe: Recipe, model: Path, step: int) -> Path:
    """Write the card into the folder of a step's weights; an existing one stays, since somebody may have edited it.

    Returns:
        The card's path.
    """
    path = model / CARD
    if not path.exists():
        write_whole(path, card(recipe, step))
    return path


def card(recipe: Recipe, step: int) -> str:
    """The card as Markdown with the hub's metadata."""
    experiment = recipe.trainer.experiment_name or recipe.name
    base = str(recipe.worker.actor.model.model_path)
    every, _ = read_validations(run_dir(experiment), recipe)
    dumps = of_last_measure({at: dump for at, dump in every.items() if at <= step})
    ends = {at: dumps[at] for at in sorted({min(dumps), max(dumps)})} if dumps else {}
    rows = [Path(entry.path) for entry in path_keys(recipe) if entry.key in ("data.train_files", "data.val_files")]
    template = templates(Path(__file__).parent, html=False).get_template("model_card.md.j2")
    return template.render(
        on_hub=not Path(base).is_dir(),
        experiment=experiment,
        base_model=os.path.relpath(base, ROOT) if Path(base).is_relative_to(ROOT) else base,
        step=step,
        recipe=recipe,
        algorithm=in_words(recipe),
        engine=ENGINES[recipe.engine],
        heading=title(next((dump.measure for dump in ends.values()), "accuracy")),
        validations=[(at, shown(mean_of(dump), dump.measure)) for at, dump in ends.items()],
        data=[(path.name, find_manifest(path)) for path in rows],
        serve=shlex.join(["vllm", "serve", *serve_arguments(recipe, Path("."))]),
        reward=shown_reward(recipe),
        commit=git_commit(),
        configuration=to_yaml(recipe).replace(f"{artifacts()}/", "artifacts/").replace(f"{ROOT}/", "").strip(),
    )
