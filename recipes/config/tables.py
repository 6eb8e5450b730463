"""The generated tables of the documentation, made from the code and the recipes that they describe."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from recipes.config import yaml_io
from recipes.config.comparison.markdown import block as comparison
from recipes.config.environment import CONTROLS, VARIABLES
from recipes.config.schema import Leaf, Recipe, describe_type, leaves

ENGINES = {"verl": "verl", "easyr1": "EasyR1"}


def markdown(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table; bars in the cells are escaped."""

    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    names = list(header)
    return "\n".join([line(names), line(["---"] * len(names)), *(line(row) for row in rows)])


def environment_table() -> str:
    """Variable, aliases, key, type, meaning."""
    known = leaves(Recipe)
    rows = []
    for variable in VARIABLES:
        leaf = known[variable.key]
        keys = ", ".join(f"`{key}`" for key in (variable.key, *variable.also))
        aliases = ", ".join(f"`{alias}`" for alias in variable.aliases)
        rows.append((f"`{variable.name}`", aliases, keys, describe_type(leaf.field.annotation), leaf.info.doc))
    return markdown(("variable", "also known as", "key", "type", "meaning"), rows)


def control_table() -> str:
    """Variables that steer the launcher."""
    return markdown(("variable", "meaning"), ((f"`{control.name}`", control.doc) for control in CONTROLS))


def schema_table() -> str:
    """Every key by group: default, type, meaning, verl's name, and what an engine cannot do."""
    groups: dict[str, list[Leaf]] = {}
    for path, leaf in leaves(Recipe).items():
        groups.setdefault(path.rpartition(".")[0] or "top level", []).append(leaf)
    parts = []
    for group, members in groups.items():
        title = "Top level" if group == "top level" else f"`{group}`"
        rows = [_row(leaf) for leaf in members]
        parts.append(f"### {title}\n\n" + markdown(("key", "default", "type", "meaning", "verl", "engines"), rows))
    return "\n\n".join(parts)


def _row(leaf: Leaf) -> tuple[str, ...]:
    verl = "<br>".join(f"`{name}`" for name in leaf.info.verl)
    name = leaf.path.rpartition(".")[2]
    default = _shown(leaf.default)
    return (f"`{name}`", f"`{default}`", describe_type(leaf.field.annotation), leaf.info.doc, verl, _engines(leaf))


def _shown(value: Any) -> str:
    return yaml_io.flow(value)


def _engines(leaf: Leaf) -> str:
    notes = [f"not {ENGINES[engine]}: {reason}" for engine, reason in leaf.info.not_on.items()]
    for engine, values in leaf.info.values_on.items():
        listed = ", ".join(_shown(value) for value in values)
        notes.append(f"{ENGINES[engine]}: {listed}")
    return "; ".join(notes) or "both"


BLOCKS: dict[str, Callable[..., str]] = {
    "comparison": comparison,
    "environment": environment_table,
    "controls": control_table,
    "schema": schema_table,
}
