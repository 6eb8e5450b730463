"""The table as Markdown, for the terminal's pipes and for the blocks in examples/*/README.md."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from recipes.config import yaml_io
from recipes.config.comparison.native import OUTSIDE
from recipes.config.comparison.official import chosen
from recipes.config.comparison.rows import ABSENT, Row, Table, compare
from recipes.errors import RecipeError

STEPS = (
    "`val_freq` and `save_freq` count steps and batch sizes count prompts, on every side. A dash: that side has no "
    'such key. "default": the example leaves it to its engine.'
)
DASH = "—"


def header(table: Table) -> list[str]:
    """Heads of the columns."""
    return ["key", "ours", *(each.title for each in table.official), "status", "reason"]


def cells(row: Row) -> list[str]:
    """The row as plain text; an official value that is its engine's default says so."""
    official = [
        shown(value) + (" (default)" if default and value is not ABSENT else "")
        for value, default in zip(row.official, row.defaults, strict=True)
    ]
    return [row.key, shown(row.ours), *official, row.status, why(row)]


def shown(value: Any) -> str:
    """A value as YAML on one line; a dash where a side does not have the key."""
    return DASH if value is ABSENT else yaml_io.flow(value)


def why(row: Row) -> str:
    """The reason of a difference; an aligned value needs none."""
    if row.status == "aligned":
        return ""
    return row.reason or "NO REASON GIVEN"


def summary(table: Table) -> str:
    """How many keys are as in the examples, and how many are not."""
    adjusted = sum(row.status == "adjusted" for row in table.rows)
    return (
        f"{len(table.aligned)} keys aligned, {adjusted} adjusted, {len(table.differences) - adjusted} only ours; "
        f"{table.same} more are nobody's choice and the same everywhere."
    )


def notes(table: Table) -> list[str]:
    """Where the official values are from, and what they set that has no counterpart here."""
    lines = [f"{each.title}: {each.origin}." for each in table.official]
    outside = {key: value for each in table.official for key, value in each.outside.items()}
    lines += [
        f"Outside the schema: `{key}: {shown(value)}` ({OUTSIDE.get(key, 'not known here')})."
        for key, value in outside.items()
    ]
    return lines


def markdown(table: Table, rows: Sequence[Row] | None = None) -> str:
    """A Markdown table of all rows, or of some."""
    from recipes.config.tables import markdown as laid_out

    def styled(row: Row) -> list[str]:
        plain = cells(row)
        code = [_code(cell) for cell in plain[:-2]]
        return [*code, *plain[-2:]]

    return laid_out(header(table), [styled(row) for row in (table.rows if rows is None else rows)])


def _code(cell: str) -> str:
    if cell == DASH:
        return cell
    value, default, _ = cell.partition(" (default)")
    return f"`{value}`{default}"


def page(table: Table) -> str:
    """Summary, table and notes."""
    listed = "\n".join(f"- {note}" for note in notes(table))
    return f"{summary(table)} {STEPS}\n\n{markdown(table)}\n\n{listed}\n"


def block(task: str = "", *against: str) -> str:
    """The generated block `comparison TASK EXAMPLE...` of a README: differences first, aligned keys folded away.

    Raises RecipeError where a difference has no reason.
    """
    if not task or not against:
        raise RecipeError(
            "a comparison names a recipe and official examples", fix="<!-- generated: comparison countdown easyr1 -->"
        )
    table = compare(task, chosen(against))
    table.require_reasons()
    listed = "\n".join(f"- {note}" for note in notes(table))
    folded = f"<details><summary>{len(table.aligned)} aligned keys</summary>"
    return "\n\n".join(
        [
            f"{summary(table)} {STEPS}",
            markdown(table, table.differences),
            f"{folded}\n\n{markdown(table, table.aligned)}\n\n</details>",
            listed,
        ]
    )
