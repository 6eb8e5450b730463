"""The machine: shared memory, and folders that can be written."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from recipes.config import Recipe, path_keys
from recipes.errors import RecipeError
from recipes.paths import run_dir

SHARED_MEMORY = Path("/dev/shm")
SMALL_SHARED_MEMORY = {"cpu": 512 << 20, "gpu": 8 << 30}
"""Bytes below which Ray's object store, the weight transfer or NCCL fail: containers have 64 MiB unless told."""


def inspect(recipe: Recipe) -> list[str]:
    """Raise where an output folder cannot be written; remark on little shared memory."""
    outputs = [(key.key, Path(key.path)) for key in path_keys(recipe) if key.kind == "output"]
    outputs.append(("the run's folder", run_dir(recipe.trainer.experiment_name or recipe.name)))
    for name, folder in outputs:
        _writable(name, folder)
    return _shared_memory(recipe.hardware)


def _writable(name: str, folder: Path) -> None:
    nearest = folder
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    if nearest == folder and not nearest.is_dir() and name != "trainer.ray_timeline":
        raise RecipeError(f"{folder} is a file, not a folder", where=name, fix="move it away, or give another folder")
    if not os.access(nearest, os.W_OK):
        raise RecipeError(
            f"{nearest} cannot be written", where=name, fix="change its permissions, or set ARTIFACTS_DIR"
        )


def _shared_memory(hardware: str) -> list[str]:
    if not SHARED_MEMORY.is_dir():
        return []
    free, needed = shutil.disk_usage(SHARED_MEMORY).free, SMALL_SHARED_MEMORY[hardware]
    if free >= needed:
        return []
    return [
        f"{SHARED_MEMORY} has only {free / 2**20:.0f} MiB free; Ray and NCCL want {needed / 2**20:.0f} MiB or more "
        "(for a container: --shm-size=16g)"
    ]
