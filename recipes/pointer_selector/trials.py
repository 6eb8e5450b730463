"""One trial of the sweep: train one arm with one seed, and measure it on validation and test."""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from recipes.config.layers import flatten
from recipes.pointer_selector.checkpoints import load_policy
from recipes.pointer_selector.config import GrpoConfig, PointerRecipe
from recipes.pointer_selector.evaluation import policy_results
from recipes.pointer_selector.machine import device
from recipes.pointer_selector.metrics import Sinks
from recipes.pointer_selector.preparation import Prepared, prepare
from recipes.pointer_selector.resolve import changed
from recipes.pointer_selector.training import Trainer


@dataclass(frozen=True)
class Task:
    """What a worker process trains: a resolved recipe as plain values, and where its checkpoints go."""

    values: dict[str, Any]
    folder: str

    @property
    def recipe(self) -> PointerRecipe:
        return PointerRecipe.model_validate(self.values)


def digest(recipe: PointerRecipe) -> str:
    """A short name for everything that decides a trial's result; without GRPO its keys decide nothing."""
    free = (
        "name", "trainer.experiment_name", "trainer.logger", "trainer.project_name", "trainer.warm_up_from",
        "trainer.device",
    )  # fmt: skip
    if not recipe.grpo.epochs:
        free += ("grpo.",)
    keys = {path: value for path, value in flatten(recipe.model_dump()).items() if not path.startswith(free)}
    return hashlib.sha256(json.dumps(keys, sort_keys=True).encode()).hexdigest()[:16]


def warm_up_of(recipe: PointerRecipe) -> PointerRecipe:
    """The part of a recipe that its warm-up depends on; arms that differ in GRPO only share it."""
    keys = {f"grpo.{path}": value for path, value in flatten(GrpoConfig().model_dump()).items()}
    return changed(recipe, {**keys, "grpo.epochs": 0})


def run(task: Task) -> dict[str, Any]:
    """Train and measure; a trial that was interrupted goes on from its last checkpoint."""
    import torch

    torch.set_num_threads(1)
    recipe, folder = task.recipe, Path(task.folder)
    prepared = _prepared(json.dumps([recipe.data.model_dump(), recipe.workload.model_dump()]))
    started = time.perf_counter()
    trainer = Trainer(recipe, prepared.parts, prepared.judge, folder, Sinks([]), device=device(recipe.trainer.device))
    progress = trainer.run()
    best = progress.best
    policy = load_policy(folder)[0]
    shots = recipe.validation.shots
    measured = {
        part: policy_results(policy, prepared.parts[part], prepared.judge, shots) for part in ("validation", "test")
    }
    return {
        "best": {"phase": best.phase, "epoch": best.epoch, "value": best.value},
        "ends": progress.ends,
        "seconds": round(time.perf_counter() - started, 1),
        "validation": {str(s): float(r.correct.mean()) for s, r in measured["validation"].items()},
        "test": {str(s): float(r.correct.mean()) for s, r in measured["test"].items()},
        "last_phase": {"train": progress.train_curve, "validation": progress.validation_curve},
    }


@cache
def _prepared(data: str) -> Prepared:
    """The data of a recipe, read once a process."""
    values, workload = json.loads(data)
    return prepare(PointerRecipe.model_validate({"data": values, "workload": workload}))
