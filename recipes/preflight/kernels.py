"""Kernels of libraries that a machine may lack: attention that keeps packed responses apart, and liger's."""

from __future__ import annotations

import os

from recipes.config import Recipe
from recipes.config.gpus import lacks

SECTION = "docs/INSTALLATION.md, section flash-attn"
CANNOT_PACK = (None, "eager", "sdpa", "flash_attention_2")
"""Attention that needs flash-attn, or cannot separate packed responses without it; None is verl's own choice."""


def check_attention(recipe: Recipe) -> list[str]:
    """Raise where verl needs flash-attn or packed responses would see each other; remark where padding is kept."""
    on_cpus = recipe.hardware == "cpu"
    decided = on_cpus and not recipe.source_of("worker.actor.model.override_config").by_user
    if recipe.engine != "verl" or decided or not (on_cpus or lacks("flash_attn", os.environ)):
        return []
    actor, packing = recipe.worker.actor, recipe.source_of("worker.actor.padding_free")
    attention = actor.model.override_config.get("attn_implementation")
    if actor.padding_free and attention in CANNOT_PACK:
        raise recipe.error(
            f"worker.actor.padding_free packs responses, and the attention {attention or 'flash_attention_2'} "
            "cannot keep them apart here",
            "set PADDING_FREE=false"
            if on_cpus
            else f"leave worker.actor.padding_free and PADDING_FREE away, or install flash-attn ({SECTION})",
            "worker.actor.padding_free",
        )
    if on_cpus or actor.padding_free or packing.by_user:
        return []
    return [f"{packing}: padding is kept, and micro-batches have a fixed number of responses; see {SECTION}"]


def check_liger(recipe: Recipe) -> None:
    """Raise where liger's kernels are asked for and not installed."""
    if recipe.hardware == "gpu" and recipe.worker.actor.model.use_liger and lacks("liger_kernel", os.environ):
        key = "worker.actor.model.use_liger"
        raise recipe.error(
            f"{key} is true, and this machine has no liger-kernel", f"set {key} to false, or install it", key
        )
