"""The disk: whether the checkpoints will fit, reckoned from the model's size."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from recipes.config import Recipe, accounting
from recipes.errors import RecipeError
from recipes.preflight import checkpoints, data
from recipes.preflight.model import weights

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1}
SHARDS, ADAM, HUGGINGFACE = 4, 8, 2
"""Bytes a parameter in a verl checkpoint: float32 weights, Adam's two moments, and bfloat16 weights to load."""
MARGIN = 512 << 20
"""Bytes for logs, rollouts and Ray's own files."""


def parameters(folder: Path) -> int:
    """Parameters of a local model, from the size of its files; 0 where there are none."""
    size = sum(file.stat().st_size for file in weights(folder))
    if not size:
        return 0
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    text = config.get("text_config") or {}
    dtype = config.get("dtype") or config.get("torch_dtype") or text.get("dtype") or text.get("torch_dtype")
    return size // BYTES.get(str(dtype), 2)


def checkpoint_bytes(recipe: Recipe) -> int:
    """Size of one checkpoint; 0 for a model that is not on this machine."""
    trainer = recipe.trainer
    shards = SHARDS + (0 if trainer.save_model_only or recipe.worker.actor.model.lora.rank else ADAM)
    return parameters(Path(recipe.worker.actor.model.model_path)) * (shards + HUGGINGFACE * trainer.save_hf_model)


def inspect(recipe: Recipe) -> list[str]:
    """Raise where the run's checkpoints will not fit; one more than is kept, since the old goes after the new came."""
    trainer, folder = recipe.trainer, checkpoints.folder(recipe)
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(nearest).free
    one = checkpoint_bytes(recipe) if trainer.save_freq > 0 else 0
    saves = -(-accounting(recipe, data.rows(recipe)).total_steps // trainer.save_freq) if trainer.save_freq > 0 else 0
    kept = min(saves, trainer.save_limit + 1) if trainer.save_limit > 0 else saves
    existing = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) if folder.is_dir() else 0
    needed = max(kept * one - existing, min(kept, 1) * one) + MARGIN
    if free >= needed:
        return []
    raise RecipeError(
        f"the disk has {_gigabytes(free)} free, but the run needs {_gigabytes(needed)}: "
        f"{kept} checkpoints of {_gigabytes(one)}, and logs",
        where=str(nearest),
        fix="make room, set ARTIFACTS_DIR or CHECKPOINT_DIR to a larger disk, or lower SAVE_LIMIT",
    )


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.1f} GB"
