"""EasyR1's own keys: those of its dataclasses that the schema does not have, and what says the same on verl."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from recipes.config.schema import Recipe, leaves
from recipes.errors import RecipeError, did_you_mean
from recipes.paths import CONFIGS
from recipes.settings.keys import groups
from recipes.settings.layers import EASYR1
from recipes.yaml_text import flow, read

PREFIX = f"{EASYR1}."


@cache
def easyr1_defaults() -> dict[str, Any]:
    """EasyR1's default of every key, dotted, at the commit that `engines/easyr1` patches."""
    return read(CONFIGS / "official" / "easyr1_defaults.yaml")["values"]


@cache
def _on_verl() -> dict[str, str]:
    return read(Path(__file__).with_suffix(".yaml"))


def of_easyr1(written: str, where: str) -> str | None:
    """The name under which a key of EasyR1's is found: the schema's, or `easyr1.` and EasyR1's; None for other names.

    Raises RecipeError for a name with `easyr1.` before it that EasyR1 does not have.
    """
    name = written.removeprefix(PREFIX)
    same = next((each for each in (name, _on_verl().get(name)) if each in leaves(Recipe)), None)
    in_mapping = any(easyr1_defaults().get(group) == {} for group in groups(name))
    if name != written and not (same or in_mapping or name in easyr1_defaults()):
        fix = did_you_mean(name, easyr1_defaults()) or "see verl/trainer/config.py of EasyR1"
        raise RecipeError(f"EasyR1 has no key {name}", where=where, fix=fix)
    return same or (f"{PREFIX}{name}" if in_mapping or name in easyr1_defaults() else None)


def instead_on_verl(name: str, value: Any) -> str:
    """What to write on verl instead of a key of EasyR1's, or why there is nothing; empty where no file says."""
    found = next((_on_verl()[each] for each in (name, *groups(name)) if each in _on_verl()), "")
    return found if not found or " " in found else f"write {found}={flow(value)}"


def refused_on_verl(recipe: Recipe) -> Iterator[RecipeError]:
    """One error for each key of EasyR1's own."""
    for name, value in recipe.easyr1.items():
        yield RecipeError(
            f"{name} is a key of EasyR1, and the engine is verl",
            where=recipe.source_of(f"{PREFIX}{name}").where,
            fix=instead_on_verl(name, value) or "leave it out, or use ENGINE=easyr1",
        )
