"""What a key that the user set does not do, since another key, the engine or the machine decides: effects.yaml."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from recipes.config import objective
from recipes.config.names import NATIVE, PREFIX, native, verl_defaults
from recipes.config.schema import Recipe, leaves
from recipes.config.variables import table
from recipes.errors import RecipeError
from recipes.settings.keys import groups
from recipes.settings.layers import NATIVES
from recipes.yaml_text import flow


def problems(recipe: Recipe) -> Iterator[RecipeError]:
    """Yield errors for keys that a variable or an argument sets, and whose switch is off."""
    for path, switch in _switched_off(recipe).items():
        value, decisive = recipe.value(path), recipe.value(switch)
        if recipe.source_of(path).by_user and value not in (None, False):
            yield recipe.error(
                f"{path} {value} has no effect: {switch} is {decisive}",
                f"change {switch}, or leave {path} out",
                path,
                switch,
            )


def remarks(recipe: Recipe) -> Iterator[str]:
    """Yield one line for each variable, argument and file of the user's that sets keys without effect.

    A variable that sets several keys, one of which acts, has an effect.
    """
    off = {path: switch for path, switch in _switched_off(recipe).items() if recipe.value(path) is not False}
    chosen = {path: source for path, source in recipe.sources.items() if source.chosen and path not in NATIVES}
    idle = {path: _why_idle(recipe, path, off) for path in chosen if _says_something(recipe, path)}
    acting = {source.where for path, source in chosen.items() if not idle.get(path) and source.by_user}
    found: dict[str, list[str]] = {}
    for path, why in idle.items():
        if why and chosen[path].where not in acting:
            said = f"{_bare(path)} has no effect, {why}"
            found.setdefault(chosen[path].where, []).append(said)
    yield from (f"{where}: {'; '.join(said)}" for where, said in found.items())


def _says_something(recipe: Recipe, path: str) -> bool:
    """Return whether a value asks for anything; a file may repeat a default."""
    leaf = leaves(Recipe).get(path)
    return not leaf or recipe.value(path) not in ((None,) if recipe.source_of(path).by_user else (None, leaf.default))


def _why_idle(recipe: Recipe, path: str, off: Mapping[str, str]) -> str:
    """Why a key has no effect; empty where it has. `off` has the switches that are off, by the keys that need them."""
    name, acts = _bare(path).lstrip("+"), table("effects.yaml")
    rows: list[Any] = next((acts[each] for each in (name, *groups(name)) if each in acts), [])
    if path in off:
        rows = [*rows, {off[path]: {"not": [recipe.value(off[path])]}}]
    elif path != name and not rows:
        switches = [f"{group}.{word}" for group in groups(name) for word in ("enable", "enabled")]
        rows = [{each: {"not": [False]}} for each in switches if each != name and each in verl_defaults()][:1]
    cases = [row for row in rows if isinstance(row, Mapping)]
    wrong = [next((key for key in case if not _holds(recipe, key, case[key])), "") for case in cases]
    if not cases or not all(wrong):
        return ""
    hint = "".join(f": {row}" for row in rows if isinstance(row, str))
    return f"since {wrong[0]} is {flow(_value(recipe, wrong[0]))}{hint}"


def _bare(path: str) -> str:
    return path.removeprefix(NATIVE).removeprefix(PREFIX)


def _holds(recipe: Recipe, key: str, values: Any) -> bool:
    value = _value(recipe, key)
    return value not in values["not"] if isinstance(values, Mapping) else value in values


def _value(recipe: Recipe, key: str) -> Any:
    """The value of a recipe's key or of verl's; one that is handed to verl past the recipe's key counts."""
    given, leaf = native(recipe), leaves(Recipe).get(key)
    past = next((given[name] for name in (key, *(leaf.info.verl if leaf else ())) if name in given), None)
    return past if past is not None else recipe.value(key) if leaf else verl_defaults().get(key)


def _switched_off(recipe: Recipe) -> dict[str, str]:
    """Key -> the switch that is off and without which nothing reads it."""
    off = {
        path: leaf.info.needs
        for path, leaf in leaves(Recipe).items()
        if leaf.info.needs and not recipe.value(leaf.info.needs)
    }
    if recipe.algorithm.disable_kl:
        off |= dict.fromkeys(objective.OF_KL, objective.NO_KL)
    elif objective.kl_in_loss(recipe) and not objective.kl_in_reward(recipe):
        of_loss = {"algorithm.kl_coef": "algorithm.kl_loss_coef", "algorithm.kl_penalty": "algorithm.kl_loss_type"}
        off |= {key: own for key, own in of_loss.items() if recipe.value(own) not in (None, recipe.value(key))}
    return off
