"""The end of a run: the closing table, why it failed, what to type next, and the model card."""

import os
import shlex
import signal
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from recipes.config import Recipe, path_keys, to_yaml
from recipes.config.checks import ENGINES
from recipes.config.resolve import ESTIMATOR, algorithms, changes
from recipes.config.rewards import shown_reward
from recipes.config.schema import leaves
from recipes.config.variables import read_arguments, split_overlays, variable_names
from recipes.data.rows import find_manifest
from recipes.drawing import templates
from recipes.engines.checkpoints import BEST, Checkpoint, best_checkpoint, last_checkpoint
from recipes.files import FULL, full_disk, write_whole
from recipes.memory.estimates import memory_limit
from recipes.paths import ROOT, artifacts, git_commit, relative_to_cwd, run_dir, script_command
from recipes.runs.compare import shown, title
from recipes.runs.folder import Run, RunFiles, compares_since, read
from recipes.runs.health import HELD_OUT, MISMATCH_ADVICE, findings_of
from recipes.runs.log import TrainerError
from recipes.runs.metrics import number, read_validations, validation
from recipes.runs.supervise import Outcome
from recipes.yaml_text import flow

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
    """Print how a run ended and what to type next; return the exit code of the launcher.

    `outcome` is None where nothing was left to train; then the run's config.yaml is an earlier start's, and may have
    another number of steps than this one's `total`.
    """
    place, run = Path(str(recipe.trainer.save_checkpoint_path)), replace(read(files.folder), total=total)
    checkpoint, best = last_checkpoint(place), best_checkpoint(place)
    if outcome and outcome.exit_code:
        console.print("\n".join(failure(outcome, files.log, checkpoint)))
        return outcome.exit_code
    rows = results(run)
    alarms = [finding for finding in findings_of(replace(run, recipe=recipe)) if finding.alarming]
    worse = any(each.status == "failure" or each.rule.name == HELD_OUT for each in alarms)
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
        described = checkpoint.model / CARD
        if not described.exists():  # somebody may have edited one that is there
            write_whole(described, card(recipe, checkpoint.step))
        rows.append(("model card", str(relative_to_cwd(described))))
    if worse:
        rows = [row for row in rows if row[0] not in ("more steps", "upload")]
    rows += [("open", finding.line()) for finding in alarms]
    rows += [("symptoms", "docs/IT_DOES_NOT_LEARN.md")] if alarms else []
    # Lines are never broken, so that paths and commands can be copied.
    width = max(len(name) for name, _ in rows)
    console.print("\n".join(["-" * 80, *(f"{name:<{width}}  {value}" for name, value in rows), "-" * 80]))
    return 0


def results(run: Run) -> list[tuple[str, str]]:
    """The steps of the experiment, and the first and last of its validations that compare, of all and by source."""
    rows = [("steps", f"{run.step} of {run.total}" if run.total else str(run.step))]
    if not run.validations:
        return rows
    ends = sorted({min(run.validations), max(run.validations)})
    means = {step.step: logged.means for step in run.history if step.step in ends and (logged := validation(step))}
    of_sources = {f"{source}: ": [means[step].get(source) for step in ends] for source in means[ends[-1]]}
    over_all = {"": [run.validations[step].value for step in ends]} if len(of_sources) > 1 else {}
    for source, values in (over_all | of_sources).items():
        shown = " -> ".join(f"{number(value)} (step {step})" for step, value in zip(ends, values, strict=True))
        rows.append((f"validation {run.measure}", source + shown))
    if run.since:
        rows.append(("", f"the reward or the questions changed: earlier ones than of step {run.since} do not compare"))
    return rows


def launcher(task: str, script: str = "launch.sh") -> str:
    """The command for a task, or for a recipe's path: the launcher that was typed, which names it, or `script`."""
    typed = os.environ.get("RECIPES_LAUNCHER")
    return shlex.join(["bash", typed]) if typed else any_launcher(task, script)


def any_launcher(task: str, script: str = "launch.sh") -> str:
    """The command for a task, or for a recipe's path, with the script that takes every task."""
    return shlex.join(["bash", str(relative_to_cwd(ROOT / "scripts" / script)), task])


def next_commands(
    recipe: Recipe,
    task: str,
    checkpoint: Checkpoint | None,
    total: int | None,
    environ: Mapping[str, str],
    overrides: Sequence[str] = (),
) -> list[tuple[str, str]]:
    """The commands that a user may want next: the report, evaluating the checkpoint, and training for more steps.

    That for more steps repeats what the user typed: task or path of a recipe, variables, and the launcher's arguments.
    """
    name = recipe.experiment
    commands = [("report", script_command("monitor.py", "report", name))]
    if checkpoint and checkpoint.model:
        commands.append(("evaluate", script_command("eval.py", "reward", "--run", str(relative_to_cwd(run_dir(name))))))
    if checkpoint and total:
        done = checkpoint.step >= total
        given = typed_variables(environ, ("trainer.max_steps",) if done else ())
        again = typed_arguments(overrides, ("trainer.max_steps",) if done else ())
        more = f"MAX_STEPS={2 * checkpoint.step} " if done else ""
        commands.append(("more steps" if done else f"to step {total}", f"{given}{more}{launcher(task)}{again}"))
    return commands


def typed_variables(environ: Mapping[str, str], left_out: Sequence[str]) -> str:
    """The variables that are set and that a run reads, as typed in front of a command; not those of keys `left_out`."""
    dropped = {"DRY_RUN", *(name for key in left_out for name in leaves(Recipe)[key].info.variable.split())}
    names = sorted(name for name in variable_names() - dropped if environ.get(name))
    return "".join(f"{name}={shlex.quote(environ[name])} " for name in names)


def typed_arguments(overrides: Sequence[str], left_out: Sequence[str]) -> str:
    """The launcher's arguments as typed behind a command, without those that set keys in `left_out`."""
    overlays, words = split_overlays(overrides)
    kept = dict.fromkeys(each.words for each in read_arguments(words) if each.key not in left_out)
    return "".join(f" {shlex.quote(word)}" for part in (overlays, *kept) for word in part)


def failure(outcome: Outcome, log: Path, checkpoint: Checkpoint | None) -> list[str]:
    """The reason why a run ended with a nonzero exit code, and how to go on, one message a line."""
    if outcome.interrupted:
        lines = [f"stopped by {outcome.interrupted.name}"]
    elif outcome.fault:
        lines = [f"error: {outcome.fault}", f"  log:   {relative_to_cwd(log)}", f"  fix:   {MISMATCH_ADVICE}"]
    else:
        error = outcome.error or TrainerError()
        full = full_disk(log, Path(tempfile.gettempdir())) if not error.hint else ""  # the log itself may lack its end
        hint = error.hint or (f"{full}: {FULL}" if full else "")
        lines = [f"error: the trainer hung and was stopped: {outcome.hung}"] if outcome.hung else []
        cause = error.error or full or ("" if outcome.hung else exit_reason(outcome.code))  # a hung one was ended here
        lines += [f"{'cause' if outcome.hung else 'error'}: {cause}"] if cause else []
        lines += [f"  where: {error.frame}"] if error.frame else []
        lines += [f"  log:   {relative_to_cwd(log)}"]
        lines += [f"  fix:   {hint}"] if hint else []
    if outcome.fault and checkpoint:
        lines.append(f"this run's checkpoints are not to be used: remove {relative_to_cwd(checkpoint.folder.parent)}")
    elif checkpoint:
        lines.append(f"the run can be resumed from step {checkpoint.step}: the same command again")
    else:
        lines.append("no checkpoint was written yet: the same command starts again from the beginning")
    return lines


def exit_reason(code: int) -> str:
    """An exit code in words. A signal is a negative code, or 128 + its number where a process in between reports it."""
    number = -code if code < 0 else code - 128
    if number == signal.SIGKILL:
        limit = memory_limit()
        look = f"this process may have {limit}" if limit else "see `dmesg` and `free -h`"
        return f"the trainer was killed; if nobody did that, memory ran out: {look}"
    if number in signal.valid_signals():
        return f"the trainer was ended by {signal.Signals(number).name}"
    return f"the trainer ended with exit code {code}"


def serve_arguments(recipe: Recipe, model: Path) -> list[str]:
    """Arguments of `vllm serve` for a checkpoint, with as much context as the run trained with."""
    return [str(model), "--served-model-name", recipe.name, "--max-model-len", str(recipe.longest)]


def card(recipe: Recipe, step: int) -> str:
    """The card as Markdown with the hub's metadata."""
    experiment = recipe.experiment
    base = str(recipe.worker.actor.model.model_path)
    folder = run_dir(experiment)
    every, _ = read_validations(folder, recipe, compares_since(folder))
    files = {at: file for at, file in every.items() if at <= step}
    ends = {at: files[at] for at in sorted({min(files), max(files)})} if files else {}
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
        heading=title(next((file.measure for file in ends.values()), "accuracy")),
        validations=[(at, shown(file.measures.mean, file.measure)) for at, file in ends.items()],
        data=[(path.name, find_manifest(path)) for path in rows],
        serve=shlex.join(["vllm", "serve", *serve_arguments(recipe, Path("."))]),
        reward=shown_reward(recipe),
        commit=git_commit(),
        configuration=to_yaml(recipe).replace(f"{artifacts()}/", "artifacts/").replace(f"{ROOT}/", "").strip(),
    )


def in_words(recipe: Recipe) -> str:
    """The algorithm that ran: where the recipe names a preset, the nearest one, with the values that differ from it."""
    preset, estimator = recipe.algorithm.preset, recipe.algorithm.adv_estimator
    if preset is None:
        return estimator
    differing = {name: changes(recipe, name) for name in algorithms()}
    alike = [name for name, lost in differing.items() if not any(each.path == ESTIMATOR for each in lost)]
    near = min(alike or [preset], key=lambda name: (len(differing[name]), name == preset))
    others = [f"{each.path} {flow(recipe.value(each.path))}" for each in differing[near]]
    return f"{near} with {', '.join(others)}" if others else near
