"""Layers of a configuration: flat dotted keys, each with the file, variable or argument that set it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

LayerName = Literal["default", "recipe", "embedded", "hardware", "algorithm", "environment", "argument"]
ORDER: dict[str, int] = {name: rank for rank, name in enumerate(LayerName.__args__)}  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Source:
    """Which layer set a key, where exactly, in words for an error message, and the key whose value it took, if any."""

    layer: LayerName
    where: str
    follows: str = ""

    @property
    def rank(self) -> int:
        return ORDER[self.layer]

    @property
    def by_user(self) -> bool:
        """Whether the user asked for it in this run, through a variable or an argument."""
        return self.layer in ("environment", "argument")

    def __str__(self) -> str:
        return self.where


DEFAULT = Source("default", "default of the schema")


@dataclass(frozen=True)
class Setting:
    """One value with its source; `path` is dotted."""

    path: str
    value: Any
    source: Source


def flatten(tree: Mapping[str, Any], stops: Iterable[str] = (), prefix: str = "") -> dict[str, Any]:
    """Nested mappings to dotted keys. A mapping that is empty, or whose path is in `stops`, stays a value."""
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
    """Dotted keys to nested mappings; the inverse of `flatten`."""
    tree: dict[str, Any] = {}
    for path, value in flat.items():
        *groups, name = path.split(".")
        node = tree
        for group in groups:
            node = node.setdefault(group, {})
        node[name] = value
    return tree
