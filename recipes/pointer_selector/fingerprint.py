"""What must be the same for a run to be resumed exactly, and the message when it is not."""

from __future__ import annotations

import hashlib
from typing import Any

from recipes.config.layers import flatten
from recipes.errors import RecipeError
from recipes.pointer_selector.config import PointerRecipe
from recipes.pointer_selector.data import PointerData

FREE = (
    "name", "workload.", "data.candidates", "data.query_embeddings", "data.candidate_embeddings",
    "data.frozen_model", "validation.batch_size", "trainer.experiment_name", "trainer.project_name", "trainer.logger",
    "trainer.resume", "trainer.save_steps", "trainer.device",
)  # fmt: skip
"""Keys that may change between a run and its continuation; the data itself is compared by content."""


def fingerprint(recipe: PointerRecipe, *parts: PointerData) -> dict[str, Any]:
    """Keys that decide the result, and one digest of the data."""
    keys = {path: value for path, value in flatten(recipe.model_dump()).items() if not path.startswith(FREE)}
    return {"keys": keys, "data": hashlib.sha256("".join(part.digest() for part in parts).encode()).hexdigest()}


def require_same(saved: dict[str, Any], now: dict[str, Any], where: str) -> None:
    """Refuse to resume another run.

    Raises:
        RecipeError: a key that decides the result, or the data, is not what the checkpoint was trained with.
    """
    fix = "set it back, or choose another EXPERIMENT_NAME for a new run"
    before, after = saved["keys"], now["keys"]
    if before.get("data.shot_num") != after["data.shot_num"]:
        raise RecipeError(
            f"the checkpoint was trained for {before.get('data.shot_num')} shots, "
            f"and this run asks for {after['data.shot_num']}",
            where=where,
            fix=fix,
        )
    changed = [f"{key}: {before.get(key)!r} -> {value!r}" for key, value in after.items() if before.get(key) != value]
    if changed:
        raise RecipeError(f"the checkpoint belongs to another recipe ({'; '.join(changed)})", where=where, fix=fix)
    if saved["data"] != now["data"]:
        raise RecipeError(
            "the checkpoint was trained on other data",
            where=where,
            fix="bring the data back, or choose another EXPERIMENT_NAME",
        )
