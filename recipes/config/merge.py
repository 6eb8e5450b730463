"""Layers to one typed value for every key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from recipes.config import verl_names
from recipes.config.layers import DEFAULT, Setting, Source, flatten, nest
from recipes.config.schema import Recipe, describe_type, leaves, sections
from recipes.config.text import did_you_mean, parse_as
from recipes.errors import RecipeError

NATIVE = "verl."


def settings_of(tree: Any, source: Source) -> list[Setting]:
    """The keys of a YAML tree as settings; groups that are left empty set nothing."""
    if not isinstance(tree, Mapping):
        raise RecipeError(f"expected keys and values, not {tree!r}", where=source.where)
    known = leaves(Recipe)
    stops = [path for path, leaf in known.items() if leaf.is_open and path != "verl"]
    flat = flatten(tree, stops)
    return [
        Setting(str(path), value, source)
        for path, value in flat.items()
        if not (path in sections(Recipe) and value in (None, {})) and not (path == "verl" and not value)
    ]


def check_names(settings: Iterable[Setting]) -> None:
    """Raise RecipeError for the first key that the schema (or, below `verl`, verl) does not know."""
    known, groups = leaves(Recipe), sections(Recipe)
    for setting in settings:
        path = setting.path
        if path.startswith(NATIVE):
            verl_names.check(path.removeprefix(NATIVE), setting.value, setting.source)
        elif path in groups:
            raise RecipeError(f"{path} is a group of keys, not a value: {setting.value!r}", where=setting.source.where)
        elif path not in known and not _inside_open(path):
            raise RecipeError(
                f"unknown key {path}",
                where=setting.source.where,
                fix=did_you_mean(path, _names_like(path)) or "see docs/CONFIGURATION.md for every key",
            )


def _names_like(path: str) -> list[str]:
    """The schema's keys, and verl's where its tree begins as the schema's does: data, algorithm, trainer."""
    root = path.split(".")[0]
    return [*leaves(Recipe), *(name for name in verl_names.defaults() if name.split(".")[0] == root)]


def merge(settings: Iterable[Setting]) -> tuple[dict[str, Any], dict[str, Source]]:
    """Later settings win; mappings are merged. Returns flat values, and the source of each key.

    One of verl's own keys that is a key of the schema under another name is taken as that key, so that checks and
    accounting see it. Raises RecipeError where both names are used in one layer, or by the user, and disagree.
    """
    values: dict[str, Any] = {}
    sources: dict[str, Source] = {}
    spelled: dict[str, list[tuple[str, Any, Source]]] = {}
    for setting in settings:
        path = schema_name(setting.path)
        value = _typed(path, setting)
        if path.startswith(NATIVE):
            values.setdefault("verl", {})[path.removeprefix(NATIVE)] = value
        elif path in leaves(Recipe):
            spelled.setdefault(path, []).append((setting.path, value, setting.source))
            old = values.get(path)
            values[path] = _deep(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
        else:
            leaf = _inside_open(path)
            assert leaf is not None, path
            inner = value
            for name in reversed(path.removeprefix(f"{leaf}.").split(".")):
                inner = {name: inner}
            values[leaf] = _deep(values.get(leaf) or {}, inner)
            path = leaf
        sources[path] = setting.source
    for path, entries in spelled.items():
        _refuse_two_names(path, entries)
    return values, sources


def schema_name(path: str) -> str:
    """The schema's name of one of verl's own keys, where the two are the same number under two names."""
    if not path.startswith(NATIVE):
        return path
    return verl_names.same_in_schema().get(path.removeprefix(NATIVE), path)


def _typed(path: str, setting: Setting) -> Any:
    """Text of variables and arguments becomes a value of the key's type."""
    if not (setting.source.by_user and isinstance(setting.value, str)):
        return setting.value
    leaf = leaves(Recipe).get(path)
    return parse_as(setting.value, leaf.field.annotation if leaf and not leaf.is_open else Any)


def _refuse_two_names(path: str, entries: list[tuple[str, Any, Source]]) -> None:
    native = [entry for entry in entries if entry[0].startswith(NATIVE)]
    ours = [entry for entry in entries if not entry[0].startswith(NATIVE)]
    for name, value, source in native:
        for _, other, its_source in ours:
            together = source.layer == its_source.layer or (source.by_user and its_source.by_user)
            if together and value != other:
                raise RecipeError(
                    f"{path} is {other!r} but verl's own name for it, {name.removeprefix(NATIVE)}, is {value!r}",
                    where=f"{its_source.where}; {source.where}",
                    fix="set one of the two",
                )


def _inside_open(path: str) -> str | None:
    """The key with a free mapping that `path` lies in."""
    known = leaves(Recipe)
    parts = path.split(".")
    for depth in range(len(parts) - 1, 0, -1):
        prefix = ".".join(parts[:depth])
        if prefix in known and known[prefix].is_open:
            return prefix
    return None


def _deep(old: dict[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(old)
    for name, value in new.items():
        before = merged.get(name)
        merged[name] = _deep(before, value) if isinstance(before, dict) and isinstance(value, Mapping) else value
    return merged


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
