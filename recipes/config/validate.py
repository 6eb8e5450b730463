"""Types and bounds, with the layer that set the wrong value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from recipes.config.layers import DEFAULT, Source, nest
from recipes.config.schema import Recipe, describe_type, leaves
from recipes.config.suggest import did_you_mean
from recipes.errors import RecipeError


def validated(values: Mapping[str, Any], sources: Mapping[str, Source], embedded_on: bool = False) -> Recipe:
    """Build the recipe from flat values. Raises RecipeError that names key, value, expected type and layer."""
    native = values.get("verl") or {}
    tree = nest({path: value for path, value in values.items() if path != "verl"})
    try:
        recipe = Recipe.model_validate({**tree, "verl": native})
    except ValidationError as error:
        raise _readable(error, sources) from error
    recipe._sources.update(sources)
    recipe._embedded_on = embedded_on
    return recipe


def _readable(error: ValidationError, sources: Mapping[str, Source]) -> RecipeError:
    """The first mistake in full, the others by name."""
    by_key: dict[str, list[ErrorDetails]] = {}
    for detail in error.errors(include_url=False, include_context=True):
        by_key.setdefault(_key_of(detail), []).append(detail)
    (path, details), *others = by_key.items()
    leaf = leaves(Recipe).get(path)
    value = details[0]["input"]
    wanted = describe_type(leaf.field.annotation) if leaf else "another type"
    bound = [detail["msg"].removeprefix("Input should be ") for detail in details if detail["type"] in _BOUNDS]
    expected = f"{wanted}, {bound[0]}" if bound else wanted
    choices = wanted.removeprefix("one of ").split(" or ")[0].split(", ") if "one of " in wanted else []
    more = f" (also wrong: {', '.join(other for other, _ in others)})" if others else ""
    return RecipeError(
        f"{path} is {value!r}, expected {expected}{more}",
        where=sources.get(path, DEFAULT).where,
        fix=did_you_mean(str(value), choices),
    )


_BOUNDS = ("greater_than", "greater_than_equal", "less_than", "less_than_equal", "too_short", "too_long")


def _key_of(detail: ErrorDetails) -> str:
    """The dotted key of an error, without list positions and the names of a union's members."""
    known = leaves(Recipe)
    parts = [str(part) for part in detail["loc"]]
    for depth in range(len(parts), 0, -1):
        path = ".".join(parts[:depth])
        if path in known:
            return path
    return ".".join(parts)
