"""Layers to one value for every key, and the mistakes that show when layers meet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from recipes.config import verl_defaults
from recipes.config.layers import Setting, Source, flatten
from recipes.config.schema import Recipe, leaves, sections
from recipes.config.suggest import did_you_mean
from recipes.config.text import parse_as
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
            verl_defaults.check(path.removeprefix(NATIVE), setting.value, setting.source)
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
    return [*leaves(Recipe), *(name for name in verl_defaults.defaults() if name.split(".")[0] == root)]


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
    return verl_defaults.same_in_schema().get(path.removeprefix(NATIVE), path)


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
