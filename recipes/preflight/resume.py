"""Resuming: whose checkpoints are there, and which settings of this run take effect when it goes on from them.

verl restores from a checkpoint the weights, the optimiser with its learning rate, the schedule's base rates, the random
state (`FSDPCheckpointManager.load_checkpoint`) and the data loader with its sampler's generator
(`PPOTrainer._load_checkpoint`). Everything else comes from the new command.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from recipes.config import Recipe, load
from recipes.config.resolve import replaced
from recipes.config.schema import leaves
from recipes.engines.checkpoints import go_on_from, last_checkpoint, resumable, saved_steps
from recipes.errors import RecipeError
from recipes.paths import ROOT, run_dir

FINGERPRINT = "recipe.json"
ANOTHER_NAME = "choose a name for this run: EXPERIMENT_NAME=..., or move the folder away"

RESTORED = {
    **{
        f"worker.{role}.optim.{name}": "the optimiser and its schedule come from the checkpoint"
        for role in ("actor", "critic")
        for name in ("lr", "betas", "weight_decay", "strategy")
    },
    "data.seed": "the data loader goes on with the order that the checkpoint holds",
    "data.shuffle": "the data loader goes on with the order that the checkpoint holds",
}
"""Keys that a resumed run cannot change -> why."""


def folder(recipe: Recipe) -> Path:
    """Where the run's checkpoints go."""
    return Path(str(recipe.trainer.save_checkpoint_path))


def fingerprint(recipe: Recipe) -> dict[str, Any]:
    """What must be the same for one run to go on from another's checkpoint. Paths below the repository are relative."""
    model = recipe.worker.actor.model
    return {
        "recipe": recipe.name,
        "engine": recipe.engine,
        "model": _portable(model.model_path),
        "lora_rank": model.lora.rank,
        "ranks": recipe.n_gpus,
        "train_files": _portable(recipe.data.train_files),
        "algorithm": recipe.algorithm.preset,
        "adv_estimator": recipe.algorithm.adv_estimator,
    }


def check_resume(recipe: Recipe) -> list[str]:
    """Raise where the run would go on from, or write over, what is not its own, or cannot do what its settings say.

    Returns:
        What it goes on from, and each setting that differs from the earlier attempt.
    """
    start = recipe.trainer.load_checkpoint_path
    if start and not (Path(start) / "actor").is_dir():
        there = [f"global_step_{step}" for step in saved_steps(Path(start).parent)]
        raise recipe.error(
            f"{start} is not a checkpoint: it has no folder actor",
            f"{Path(start).parent} has {', '.join(there)}" if there else "give a folder such as .../global_step_20",
            "trainer.load_checkpoint_path",
        )
    saved = saved_steps(folder(recipe))
    if saved and (different := _recorded_differences(recipe)):
        listed = "; ".join(f"{name} {there!r} there, {here!r} here" for name, (there, here) in different.items())
        raise RecipeError(
            f"the folder has checkpoints of another recipe: {listed}", where=str(folder(recipe)), fix=ANOTHER_NAME
        )
    if start:
        return [f"going on from {start}", *changed_settings(recipe, Path(start).parent.name)]
    if not saved:
        return []
    last, problem = resumable(folder(recipe))
    if not recipe.trainer.find_last_checkpoint:
        raise RecipeError(
            f"the folder has checkpoints (last: step {saved[-1]}), and RESUME is off: a new run would write over them",
            where=str(folder(recipe)),
            fix="choose another EXPERIMENT_NAME, leave RESUME on to go on, or move the folder away",
        )
    if last is None and problem:
        raise RecipeError(
            f"no checkpoint is whole: {problem}",
            where=str(folder(recipe)),
            fix="begin again under another EXPERIMENT_NAME, or move the folder away",
        )
    if last is None:
        return []
    experiment = recipe.trainer.experiment_name or recipe.name
    instead = [f"{problem}; the last whole checkpoint is that of step {last.step}"] if problem else []
    return [*instead, f"resuming from step {last.step}, in {last.folder}", *changed_settings(recipe, experiment)]


def _goes_on(recipe: Recipe) -> bool:
    """Whether the run goes on from its own last checkpoint, where there is one."""
    return recipe.trainer.find_last_checkpoint and not recipe.trainer.load_checkpoint_path


def steps_done(recipe: Recipe) -> int:
    """The step that the run goes on from; 0 for one that begins."""
    last = last_checkpoint(folder(recipe)) if _goes_on(recipe) else None
    return last.step if last else 0


def repair(recipe: Recipe) -> None:
    """Have verl go on from the last whole checkpoint where its tracker names another; `check_resume` reports it."""
    if _goes_on(recipe) and recipe.engine == "verl":
        last, problem = resumable(folder(recipe))
        if last and problem:
            go_on_from(last)


def changed_settings(recipe: Recipe, experiment: str) -> list[str]:
    """Settings that differ from the last attempt of an experiment, old and new, one a line.

    Raises:
        RecipeError: settings that the checkpoint decides were changed.
    """
    file = run_dir(experiment) / "config.yaml"
    if not file.is_file():
        return []
    try:
        earlier = load(str(file), environ={}, hardware=recipe.hardware)
    except RecipeError as error:
        return [f"the settings of the earlier attempt cannot be compared: {error.what} ({file})"]
    changes = {
        key: (earlier.value(key), recipe.value(key))
        for key in leaves(Recipe)
        if key not in NOT_COMPARED and earlier.value(key) != recipe.value(key)
    }
    if recipe.algorithm.adv_estimator != "gae":
        changes = {key: change for key, change in changes.items() if not key.startswith("worker.critic.")}
    restored = [key for key in changes if key in RESTORED]
    if restored:
        was = "; ".join(f"{key} was {changes[key][0]!r}, now {changes[key][1]!r}" for key in restored)
        last = last_checkpoint(folder(recipe))
        weights = str(last.model) if last and last.model else ".../global_step_N/actor/huggingface"
        raise RecipeError(
            f"a resumed run cannot change this: {was}: {RESTORED[restored[0]]}",
            where="; ".join(str(recipe.source_of(key)) for key in restored),
            fix="keep the old value; or begin a new run from the trained weights alone: EXPERIMENT_NAME=another "
            f"MODEL_PATH={weights}" + " EMBEDDED=1" * recipe.embedded_on,
        )
    return [f"changed since the last attempt: {key}: {old!r} -> {new!r}" for key, (old, new) in changes.items()]


NOT_COMPARED = ("trainer.load_checkpoint_path", "trainer.find_last_checkpoint")


def record(recipe: Recipe) -> None:
    """Write into the folder whose checkpoints it holds."""
    place = folder(recipe)
    place.mkdir(parents=True, exist_ok=True)
    file = place / FINGERPRINT
    if saved_steps(place) and file.is_file():
        return
    draft = file.with_suffix(f".{os.getpid()}.tmp")
    draft.write_text(json.dumps(fingerprint(recipe), indent=2) + "\n", encoding="utf-8")
    draft.replace(file)


NAMING: dict[str, Callable[[Any], str]] = {
    "model": lambda value: Path(str(value)).name,
    "algorithm": lambda value: str(value or "plain"),
    "adv_estimator": str,
    "lora_rank": lambda value: f"lora{value}" if value else "full",
    "train_files": lambda value: Path(str(value[0] if isinstance(value, list) else value)).parent.name,
}
"""Fingerprint field -> how its value is written into an experiment's name. Ranks are not named: a run on another number
of GPUs cannot resume and is refused."""


def with_own_name(recipe: Recipe, log: Callable[[str], None]) -> Recipe:
    """The recipe; where its default experiment has checkpoints of another, under a name that says what differs.

    The same command gets the same name again, and so resumes. A name that the user gives is never changed.

    Args:
        recipe: with its final data files.
        log: prints a line to the user.
    """
    old = recipe.trainer.experiment_name or recipe.name
    asked = any(recipe.source_of(f"trainer.{key}").by_user for key in ("experiment_name", "save_checkpoint_path"))
    if asked or recipe.trainer.load_checkpoint_path or not saved_steps(folder(recipe)):
        return recipe
    try:
        different = _recorded_differences(recipe)
    except RecipeError:
        return recipe  # `check_resume` reports it
    named = [name for name in NAMING if name in different]
    if not named or {"recipe", "engine"} & set(different):
        return recipe
    if "algorithm" in named and "adv_estimator" in named:
        named.remove("adv_estimator" if different["algorithm"][1] else "algorithm")
    new = "-".join([old, *(re.sub(r"[^\w.-]+", "_", NAMING[name](different[name][1])) for name in named)])
    was = ", ".join(f"{name} {different[name][0]}" for name in named)
    log(f"the experiment {old} is another recipe's ({was}): this run is the experiment {new}")
    changes: dict[str, Any] = {"trainer.experiment_name": new}
    for key, place in (
        ("trainer.save_checkpoint_path", folder(recipe).with_name(new)),
        ("trainer.rollout_data_dir", run_dir(new) / "rollouts"),
        ("trainer.validation_data_dir", run_dir(new) / "validation"),
    ):
        if recipe.value(key) and not recipe.source_of(key).by_user and old in Path(recipe.value(key)).parts:
            changes[key] = str(place)
    return replaced(recipe, changes, f"the experiment {old} is another recipe's")


def _recorded_differences(recipe: Recipe) -> dict[str, tuple[Any, Any]]:
    """Field of the fingerprint -> (value that the folder's checkpoints were made with, value of this run).

    Raises:
        RecipeError: the folder has no record of whose its checkpoints are, or one that cannot be read.
    """
    file = folder(recipe) / FINGERPRINT
    if not file.is_file():
        what, where = "the folder has checkpoints that another program wrote", str(folder(recipe))
        raise RecipeError(what, where=where, fix=ANOTHER_NAME)
    try:
        theirs = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise RecipeError(f"{file} cannot be read: {error}", where=str(file), fix=ANOTHER_NAME) from error
    ours = fingerprint(recipe)
    return {name: (theirs.get(name), value) for name, value in ours.items() if theirs.get(name) != value}


def _portable(path: str | list[str]) -> Any:
    if isinstance(path, list):
        return [_portable(entry) for entry in path]
    return os.path.relpath(path, ROOT) if Path(path).is_absolute() and Path(path).is_relative_to(ROOT) else path
