"""Numbers that must fit each other, checked before anything starts: each message names the keys and the nearest fit."""

from __future__ import annotations

from recipes.config.checks import algorithms, batches, easyr1, values
from recipes.config.checks.algorithms import remarks
from recipes.config.checks.unread import unread
from recipes.config.schema import Recipe

__all__ = ["check", "remarks"]


LOOKS = (
    values.groups,
    values.lengths,
    values.kl,
    values.combinations,
    algorithms.clips,
    algorithms.filtering,
    algorithms.buffers,
    unread,
)


def check(recipe: Recipe, gpus: int | None = None) -> None:
    """Raise RecipeError for the first combination that the trainer would refuse, or silently change.

    Args:
        recipe: a resolved recipe.
        gpus: GPUs of this machine, where they are known; left out on machines without.
    """
    for found in (batches.machines(recipe, gpus), batches.batches(recipe), easyr1.problems(recipe)):
        for error in found:
            raise error
    for look in LOOKS:
        for error in look(recipe):
            raise error
