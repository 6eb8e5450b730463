"""Values that are nobody's business: one list of names, and one mask for every file, page and card."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from recipes.errors import RecipeError

MASK = "***"
VARIABLE = "RECIPES_REWARD_SECRETS"
"""Holds the secret arguments of a reward, as JSON (`recipes/engines/hidden_arguments.py`)."""
_NAMES = (
    *("api_?key", "access_?key", "private_?key", "key_id", "token", "secrets?", "password", "passwd", "credentials?"),
    *("auth", "authorization", "bearer", "cookie", "dsn", "webhook(_url)?"),
)
_SECRET = re.compile(rf"(.*[._-])?({'|'.join(_NAMES)})", re.IGNORECASE)


def is_secret(name: str) -> bool:
    """Return whether a key's name says that its value must not be shown: `api_key`, `hf_token`, `JUDGE_PASSWORD`."""
    return bool(_SECRET.fullmatch(name.rpartition(".")[2]))


def masked(value: Any) -> Any:
    """The value with `MASK` for every entry of its mappings whose name is secret; what is empty stays."""
    if isinstance(value, Mapping):
        return {
            name: MASK if is_secret(str(name)) and inner not in (None, "", {}, []) else masked(inner)
            for name, inner in value.items()
        }
    return [masked(inner) for inner in value] if isinstance(value, list) else value


def masked_word(word: str) -> str:
    """An argument `key=value` with `MASK` for the value of a secret key."""
    name, equals, value = word.partition("=")
    return f"{name}={MASK}" if equals and value and is_secret(name.lstrip("+-")) else word


def revealed(arguments: Mapping[str, Any], environ: Mapping[str, str], where: str) -> dict[str, Any]:
    """Arguments as they were before `masked`; the secret ones are in the variable that a run hands its trainer.

    Raises:
        RecipeError: an argument is masked, and the variable does not have it.
    """
    given = json.loads(environ.get(VARIABLE) or "{}")
    lacking = [name for name, value in arguments.items() if MASK in str(value)]
    if unknown := [name for name in lacking if name not in given]:
        raise RecipeError(
            f"the reward's argument {unknown[0]} is secret, and no file of the run has it",
            where=where,
            fix=f"""export {VARIABLE}='{{"{unknown[0]}": "..."}}'""",
        )
    return {**arguments, **{name: given[name] for name in lacking}}


def split(arguments: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The entries that may be seen, and those whose names are secret or that hold such an entry."""
    hidden = {name: value for name, value in arguments.items() if masked({name: value}) != {name: value}}
    return {name: value for name, value in arguments.items() if name not in hidden}, hidden
