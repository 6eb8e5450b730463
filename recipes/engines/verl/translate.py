"""From the recipe's keys to verl's."""

from __future__ import annotations

from typing import Any

from recipes.config.layers import Source, flatten
from recipes.config.schema import Recipe, leaves
from recipes.engines.support import OWN, is_used, require_supported
from recipes.engines.verl.rules import RULES, uses_critic
from recipes.engines.verl.values import CONVERTERS
from recipes.errors import RecipeError


def translate(recipe: Recipe) -> dict[str, Any]:
    """verl's dotted keys for the recipe: its own translation, then what CPUs need, then the keys below `verl`.

    Raises:
        RecipeError: a key that verl cannot do, or a key below `verl` that disagrees with its name in the recipe.
    """
    require_supported(recipe, "verl")
    keys = _renamed(recipe)
    for _, rule in RULES:
        keys.update(rule(recipe))
    keys = flatten(keys)
    _refuse_contradictions(recipe, keys)
    if recipe.hardware == "cpu":
        from recipes.engines.verl_cpu import settings

        needed = settings.keys(recipe)
        keys.update({name: needed[name] for name in needed if uses_critic(recipe) or not name.startswith("critic.")})
    keys.update(native(recipe))
    return keys


def native(recipe: Recipe) -> dict[str, Any]:
    """verl's own keys of the recipe, flat and without Hydra's plus."""
    return {name.lstrip("+"): value for name, value in flatten(recipe.verl).items()}


def _renamed(recipe: Recipe) -> dict[str, Any]:
    keys: dict[str, Any] = {}
    for path, leaf in leaves(Recipe).items():
        convert = CONVERTERS.get(leaf.info.via)
        if convert is None or not leaf.info.verl or path in OWN or not is_used(recipe, path):
            continue
        if leaf.info.not_on.get("verl") is not None:
            continue
        value = convert(recipe.value(path))
        for name in leaf.info.verl:
            if not (leaf.is_open and not value):
                keys[name] = value
    return keys


def _refuse_contradictions(recipe: Recipe, keys: dict[str, Any]) -> None:
    """A key below `verl` may replace a translation that an earlier layer made, and no other."""
    feeding: dict[str, list[str]] = {}
    for path, leaf in leaves(Recipe).items():
        for name in leaf.info.verl:
            feeding.setdefault(name, []).append(path)
    for name, value in recipe.verl.items():
        plain = name.lstrip("+")
        if plain not in keys or keys[plain] == value:
            continue
        source = recipe.source_of(f"verl.{name}")
        rivals = [path for path in feeding.get(plain, []) if _stands(recipe.source_of(path), source)]
        if rivals:
            raise RecipeError(
                f"{plain} is {value!r}, but {rivals[0]} makes it {keys[plain]!r}",
                where=f"{source.where}; {recipe.source_of(rivals[0]).where}",
                fix="set one of the two",
            )


def _stands(rival: Source, native: Source) -> bool:
    """Whether the recipe's own key was set as late as verl's, or by the user as well."""
    return rival.layer != "default" and (rival.rank >= native.rank or (rival.by_user and native.by_user))
