"""Checkpoints that are there already: of this recipe, so that the run goes on from them, or of another one."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from recipes.config import Recipe
from recipes.errors import RecipeError
from recipes.monitor.summary import last_checkpoint, saved_steps
from recipes.paths import ROOT

FINGERPRINT = "recipe.json"


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


def inspect(recipe: Recipe) -> list[str]:
    """Raise where the run would go on from, or write over, what is not its own."""
    start = recipe.trainer.load_checkpoint_path
    if start and not (Path(start) / "actor").is_dir():
        raise RecipeError(
            f"{start} is not a checkpoint: it has no folder actor",
            where=f"trainer.load_checkpoint_path, from {recipe.source_of('trainer.load_checkpoint_path')}",
            fix="give a folder such as .../global_step_20",
        )
    saved = saved_steps(folder(recipe))
    if not saved:
        return []
    _same_recipe(recipe)
    last = last_checkpoint(folder(recipe))
    if start:
        return [f"going on from {start}"]
    if not recipe.trainer.find_last_checkpoint:
        raise RecipeError(
            f"the folder has checkpoints (last: step {saved[-1]}), and RESUME is off: a new run would write over them",
            where=str(folder(recipe)),
            fix="choose another EXPERIMENT_NAME, leave RESUME on to go on, or move the folder away",
        )
    return [f"resuming from step {last.step}, in {last.folder}"] if last else []


def record(recipe: Recipe) -> None:
    """Say in the folder whose checkpoints it holds."""
    place = folder(recipe)
    place.mkdir(parents=True, exist_ok=True)
    file = place / FINGERPRINT
    if saved_steps(place) and file.is_file():
        return
    draft = file.with_suffix(f".{os.getpid()}.tmp")
    draft.write_text(json.dumps(fingerprint(recipe), indent=2) + "\n", encoding="utf-8")
    draft.replace(file)


def _same_recipe(recipe: Recipe) -> None:
    file = folder(recipe) / FINGERPRINT
    fix = "choose a name for this run: EXPERIMENT_NAME=..., or move the folder away"
    if not file.is_file():
        raise RecipeError("the folder has checkpoints that another program wrote", where=str(folder(recipe)), fix=fix)
    try:
        theirs = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise RecipeError(f"{file} cannot be read: {error}", where=str(file), fix=fix) from error
    ours = fingerprint(recipe)
    different = [
        f"{name} {theirs.get(name)!r} there, {ours[name]!r} here" for name in ours if theirs.get(name) != ours[name]
    ]
    if different:
        raise RecipeError(
            f"the folder has checkpoints of another recipe: {'; '.join(different)}", where=str(folder(recipe)), fix=fix
        )


def _portable(path: str | list[str]) -> Any:
    if isinstance(path, list):
        return [_portable(entry) for entry in path]
    return os.path.relpath(path, ROOT) if Path(path).is_absolute() and Path(path).is_relative_to(ROOT) else path
