"""flash-attn, which packing without padding and verl's critic need on GPUs and the set-up does not install."""

from __future__ import annotations

from recipes.config import Recipe
from recipes.config.hardware import lacks_flash_attention
from recipes.engines.verl.rules import uses_critic
from recipes.errors import RecipeError

SECTION = "docs/INSTALLATION.md, section flash-attn"
WITHOUT_PACKING = (None, "eager", "sdpa", "flash_attention_2")
"""Attention that without flash-attn cannot tell packed responses apart, or is not there; None is verl's own choice."""


def inspect(recipe: Recipe) -> list[str]:
    """Raise where verl would ask for flash-attn, or let packed responses see each other; remark on what is without it.

    Raises:
        RecipeError: names the key that asks for it.
    """
    if recipe.hardware != "gpu" or recipe.engine != "verl" or not lacks_flash_attention():
        return []
    actor, packing = recipe.worker.actor, recipe.source_of("worker.actor.padding_free")
    if uses_critic(recipe):
        raise RecipeError(
            "verl loads a critic with flash-attention (verl/utils/model.py), and flash-attn is not installed here",
            where=f"algorithm.adv_estimator, from {recipe.source_of('algorithm.adv_estimator')}",
            fix=f"install it ({SECTION}), or take an algorithm without a critic, for instance ALGORITHM=rloo",
        )
    if actor.padding_free and actor.model.override_config.get("attn_implementation") in WITHOUT_PACKING:
        raise RecipeError(
            "worker.actor.padding_free packs responses for flash-attention, and flash-attn is not installed here",
            where=f"worker.actor.padding_free, from {packing}",
            fix=f"install it ({SECTION}), or leave worker.actor.padding_free and PADDING_FREE away",
        )
    if actor.padding_free or packing.by_user:
        return []
    return [
        "flash-attn is not installed: padding is kept, micro-batches have a fixed number of responses, and attention "
        f"is PyTorch's own; {SECTION}, tells how to install it"
    ]
