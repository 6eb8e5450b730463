"""Asking an engine for what it cannot do is an error that names the key and the engine."""

from __future__ import annotations

from recipes.config.schema import Leaf, Recipe, leaves
from recipes.errors import RecipeError

OWN = ("name", "engine", "hardware", "prepare", "algorithm.preset", "verl")
"""Keys of the recipe that speak to the launcher, not to an engine."""
TITLES = {"verl": "verl", "easyr1": "EasyR1"}


def sampler(module: str, name: str) -> dict[str, str]:
    """verl's keys for a replay buffer of ours: where it is, and what verl would have handed its own."""
    place = "trainer.v1.sampler"
    return {
        f"{place}.custom_sampler.path": f"pkg://{module}",
        f"{place}.custom_sampler.name": name,
        f"{place}.sampler_kwargs.filter_groups": "${algorithm.filter_groups}",
        f"{place}.sampler_kwargs.train_batch_size": "${data.train_batch_size}",
        f"{place}.sampler_kwargs.gen_batch_size": "${oc.select:data.gen_batch_size,null}",
        f"{place}.sampler_kwargs.sync_refill_failed_groups": "${trainer.v1.sampler.sync_refill_failed_groups}",
    }


def is_used(recipe: Recipe, path: str) -> bool:
    """Whether the key takes part in this recipe: a critic's only with GAE, an adapter's only with a rank."""
    if path.startswith("worker.critic.") and recipe.algorithm.adv_estimator != "gae":
        return False
    group, _, name = path.rpartition(".")
    return not group.endswith(".lora") or name == "rank" or recipe.value(f"{group}.rank") > 0


def is_neutral(recipe: Recipe, leaf: Leaf) -> bool:
    """Whether the key asks for nothing: no layer set it, or only to the default, which every engine understands."""
    return recipe.source_of(leaf.path).layer == "default" or bool(recipe.value(leaf.path) == leaf.default)


def require_supported(recipe: Recipe, engine: str) -> None:
    """Raise RecipeError for the first key that asks `engine` for what it cannot do."""
    for path, leaf in leaves(Recipe).items():
        if not is_used(recipe, path):
            continue
        value = recipe.value(path)
        reason = leaf.info.not_on.get(engine)
        if reason is not None and not is_neutral(recipe, leaf):
            raise RecipeError(
                f"{TITLES[engine]} cannot do {path}: {value!r} ({reason})",
                where=recipe.source_of(path).where,
                fix=f"leave {path} at {leaf.default!r}, or choose another engine",
            )
        allowed = leaf.info.values_on.get(engine)
        if allowed is not None and value not in allowed:
            raise RecipeError(
                f"{TITLES[engine]} cannot do {path}: {value!r}",
                where=recipe.source_of(path).where,
                fix="use one of " + ", ".join(str(item) for item in allowed if item is not None),
            )
