"""What can be known to fail before the trainer starts: a check raises one RecipeError, or returns remarks."""

from __future__ import annotations

from collections.abc import Callable

from recipes.config import Recipe, check, remarks, visible_gpus
from recipes.engines import support
from recipes.preflight import data, images, machine, model, resume, reward

CHECKS: tuple[Callable[[Recipe], list[str]], ...] = (
    machine.inspect,
    model.inspect_attention,
    data.inspect,
    model.inspect,
    resume.inspect,
    machine.inspect_disk,
    reward.inspect_reward,
    images.inspect,
)


def inspect_machine(recipe: Recipe) -> None:
    """What needs no data: the values, the GPUs and the engine's version. Raises `RecipeError`."""
    check(recipe, visible_gpus() if recipe.hardware == "gpu" else None)
    if recipe.engine == "verl":
        support.check(recipe.hardware)
    model.inspect_attention(recipe)


def inspect(recipe: Recipe) -> list[str]:
    """Run every check that may need data and model, the quick ones first.

    Returns:
        Remarks that do not stop the run.

    Raises:
        RecipeError: the first thing that would stop it.
    """
    return [*remarks(recipe), *(remark for look in CHECKS for remark in look(recipe))]
