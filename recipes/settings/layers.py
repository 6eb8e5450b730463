"""Layers of a configuration: YAML files, variables and arguments become one typed value for every key.

OmegaConf reads YAML and merges mappings, pydantic checks types. Neither records which layer set a key; this
module does, since error messages name the layer. A program with a schema of its own uses the same functions:

    settings = [*settings_of(Schema, read(path), Source("recipe", path)), *variable_settings(environ, Schema)]
    values, sources = merge(Schema, settings)
    configuration = validated(Schema, values, sources)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar, get_origin

from omegaconf import OmegaConf
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from recipes.errors import RecipeError, did_you_mean
from recipes.settings.keys import DEFAULT, Resolved, Setting, Source, groups, leaves, members
from recipes.yaml_text import flow, parse

VERL, EASYR1 = NATIVES = ("verl", "easyr1")
"""The recipe's keys that hold an engine's own keys, by their dotted names."""


def flatten(tree: Mapping[str, Any], stops: Iterable[str] = (), prefix: str = "") -> dict[str, Any]:
    """Turn nested mappings into dotted keys. A mapping that is empty, or whose path is in `stops`, stays a value."""
    stop = frozenset(stops)
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        path = f"{prefix}{name}"
        if isinstance(value, Mapping) and value and path not in stop:
            flat.update(flatten(value, stop, f"{path}."))
        else:
            flat[path] = value
    return flat


def nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Turn dotted keys into nested mappings; the inverse of `flatten`."""
    tree: dict[str, Any] = {}
    for path, value in flat.items():
        *parents, name = path.split(".")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = value
    return tree


def parse_as(text: str, annotation: Any) -> Any:
    """Parse null and lists in the text of a variable or argument; pydantic later converts every other type.

    Items of a list are separated by commas, or stand in YAML's brackets; a single text may stand for a list of one.
    """
    kinds = [get_origin(part) or part for part in members(annotation)]
    if type(None) in kinds and text.strip().lower() in ("null", "none", "~"):
        return None
    if list in kinds and text.lstrip().startswith("["):
        return parse(text)
    items = [item.strip() for item in text.split(",") if item.strip()]
    if list in kinds and (str not in kinds or len(items) > 1):
        return items
    return text if str in kinds else text.strip()


Name = Callable[[str, Source], str]
"""Turns a name as it is written into the dotted key that it means; raises RecipeError for an unknown one."""


def known_name(
    written: str,
    source: Source,
    schema: type[BaseModel],
    documentation: str = "docs/CONFIGURATION_REFERENCE.md",
    named_elsewhere: Mapping[str, str] = {},
) -> str:
    """A `Name` function, with the schema bound, for keys that are written by their dotted names alone.

    `named_elsewhere` has the keys of names that notes write; the error for one of them names its key.
    """
    if written in leaves(schema) or open_leaf(schema, written):
        return written
    meant = named_elsewhere.get(written)
    hint = f"did you mean {meant}?" if meant else did_you_mean(written, leaves(schema))
    raise RecipeError(f"unknown key {written}", where=source.where, fix=hint or f"see {documentation} for every key")


def open_leaf(schema: type[BaseModel], path: str) -> str | None:
    """Return the key whose free mapping contains `path`; None where there is none."""
    return next((group for group in groups(path) if group in leaves(schema) and leaves(schema)[group].is_open), None)


def settings_of(schema: type[BaseModel], tree: Any, source: Source, name: Name | None = None) -> list[Setting]:
    """The keys of a YAML tree as settings; groups that are left empty set nothing.

    Raises RecipeError for an unknown key.
    """
    if not isinstance(tree, Mapping):
        what, fix = f"expected keys and values, not {tree!r}", "write `key: value` lines there"
        raise RecipeError(what, where=source.where, fix=fix)
    name = name or partial(known_name, schema=schema)
    flat = flatten(tree, [path for path, leaf in leaves(schema).items() if leaf.is_open and path not in NATIVES])
    settings = []
    for written, value in flat.items():
        is_group = written in NATIVES or any(path.startswith(f"{written}.") for path in leaves(schema))
        if is_group and value in (None, {}):
            continue
        path = name(str(written), source)
        settings.append(Setting(path, value, source, "" if path == written else str(written)))
    return settings


def merge(schema: type[BaseModel], settings: Iterable[Setting]) -> tuple[dict[str, Any], dict[str, Source]]:
    """Merge settings: later ones win, and free mappings are merged. Returns flat values, and the source of each key.

    Raises RecipeError where one layer gives a key two different values: in files only if the key is spelled in two
    ways, in variables and arguments always.
    """
    values: dict[str, Any] = {}
    sources: dict[str, Source] = {}
    earlier: dict[str, list[Setting]] = {}
    for setting in settings:
        path, value = setting.path, _typed(schema, setting)
        for other in earlier.setdefault(path, []):
            _refuse_two_values(other, setting)
        earlier[path].append(setting)
        leaf = open_leaf(schema, path)
        if leaf is not None:
            inner = path.removeprefix(f"{leaf}.")
            value = {inner: value} if leaf in NATIVES else nest({inner: value})
        target = leaf or path
        old = values.get(target)
        if isinstance(old, dict) and isinstance(value, dict):
            value = {**old, **value} if target in NATIVES else OmegaConf.to_container(OmegaConf.merge(old, value))
        values[target] = value
        sources[path if leaf in NATIVES else target] = setting.source
    return values, sources


def _typed(schema: type[BaseModel], setting: Setting) -> Any:
    """Text of variables and arguments becomes a value of the key's type."""
    if not (setting.source.by_user and isinstance(setting.value, str)):
        return setting.value
    leaf = leaves(schema).get(setting.path)
    return parse(setting.value) if leaf is None or leaf.is_open else parse_as(setting.value, leaf.field.annotation)


def _refuse_two_values(one: Setting, other: Setting) -> None:
    two_ways = other.source.by_user or (one.source == other.source and one.spelled != other.spelled)
    if one.source.layer == other.source.layer and one.value != other.value and two_ways:
        first, second = (setting.spelled or setting.path for setting in (one, other))
        what = f"{one.path} is {one.value!r} as {first}, but {other.value!r} as {second}"
        raise RecipeError(what, where=f"{one.source.where}; {other.source.where}", fix="give one of the two")


Schema = TypeVar("Schema", bound=BaseModel)


def validated(schema: type[Schema], values: Mapping[str, Any], sources: Mapping[str, Source]) -> Schema:
    """Build the configuration from flat values. Raises RecipeError that names key, value, expected type and layer."""
    try:
        configuration = schema.model_validate(nest(values))
    except ValidationError as error:
        raise _readable(schema, error, sources) from error
    if isinstance(configuration, Resolved):
        configuration._sources.update(sources)
    return configuration


def _readable(schema: type[BaseModel], error: ValidationError, sources: Mapping[str, Source]) -> RecipeError:
    """pydantic's complaint about the first wrong key, with the layer that set it; the others by name."""
    by_key: dict[str, list[ErrorDetails]] = {}
    for detail in error.errors(include_url=False):
        path = ".".join(map(str, detail["loc"]))  # with list positions, and the names of a union's members
        key = next((name for name in (path, *groups(path)) if name in leaves(schema)), path)
        by_key.setdefault(key, []).append(detail)
    (path, details), *others = by_key.items()
    value, wanted = details[0]["input"], " or ".join(detail["msg"].removeprefix("Value error, ") for detail in details)
    more = f" (also wrong: {', '.join(other for other, _ in others)})" if others else ""
    default = leaves(schema)[path].default if path in leaves(schema) else None
    by_type = "give a value that fits, or leave it out" if wanted.startswith("Input should") else wanted
    fix = did_you_mean(str(value), re.findall("'([^']+)'", wanted))
    fix = fix or (f"give a value such as {flow(default)}" if default else by_type)
    return RecipeError(f"{path} is {value!r}: {wanted}{more}", where=sources.get(path, DEFAULT).where, fix=fix)
