"""verl's keys as Hydra's overrides, with a plus where verl's configuration lacks the key."""

from __future__ import annotations

import re
from typing import Any

from recipes.config import verl_defaults
from recipes.config.schema import Recipe
from recipes.engines.verl.translate import native, translate
from recipes.errors import RecipeError

_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_/.\-]*")
_KEY = re.compile(r"[A-Za-z_][\w-]*(\.[\w-]+)*")
_WORDS = ("null", "true", "false", "nan", "inf")


def overrides(recipe: Recipe) -> list[str]:
    """What verl's command line takes. Keys at verl's own default are left out, except those given below `verl`.

    Raises RecipeError where verl is not installed, since its configuration decides what has to be added.
    """
    known = verl_defaults.defaults()
    if not known:
        raise RecipeError(
            "verl is not installed in this environment",
            where="import verl",
            fix="run bash scripts/setup_env.sh, or activate an environment that has verl",
        )
    asked = native(recipe)
    return [
        override(name, value, name in known)
        for name, value in sorted(translate(recipe).items())
        if name in asked or not _same(known.get(name), value)
    ]


def override(name: str, value: Any, known: bool) -> str:
    """One override in Hydra's grammar."""
    if not _KEY.fullmatch(name):
        raise RecipeError(f"{name!r} cannot be written as a key of Hydra", where="command line of verl")
    return f"{'' if known else '+'}{name}={quoted(value)}"


def quoted(value: Any) -> str:
    """A value in Hydra's grammar, so that it is read back as the same value; `${...}` stays an interpolation."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return "[" + ",".join(quoted(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{quoted(item)}" for key, item in value.items()) + "}"
    text = str(value)
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS:
        return text
    # Hydra reads a backslash as an escape only before a quote, and at the end of the text.
    escaped = re.sub(r"(\\*)('|\Z)", lambda found: found[1] * 2 + ("\\'" if found[2] else ""), text)
    return f"'{escaped}'"


def _same(default: Any, value: Any) -> bool:
    """Equal and of one type: 1 is not true, and 1.0 is 1."""
    if isinstance(default, bool) or isinstance(value, bool):
        return default is value
    return bool(default == value)
