"""The table of keys in docs/POINTER_SELECTOR.md, made from the schema so that a test can hold the page to it."""

from __future__ import annotations

from recipes.config.schema.field import describe_type, leaves
from recipes.pointer_selector.config import PointerRecipe
from recipes.pointer_selector.environment import VARIABLES
from recipes.pointer_selector.resolve import resolve


def key_rows() -> list[str]:
    """One Markdown row a key: name, variable, value in the recipe, type, meaning."""
    variables = {variable.key: f"`{variable.name}`" for variable in VARIABLES}
    recipe = resolve(environ={"HOME": "/nonexistent"})
    rows = []
    for path, leaf in leaves(PointerRecipe).items():
        value: object = recipe
        for part in path.split("."):
            value = getattr(value, part)
        shown = "null" if value is None else str(value).replace("'", "")
        kind = describe_type(leaf.field.annotation)
        rows.append(f"| `{path}` | {variables.get(path, '')} | {shown} | {kind} | {leaf.info.doc} |")
    return rows
