"""The table of keys in docs/POINTER_SELECTOR.md, made from the schema."""

from __future__ import annotations

from operator import attrgetter

from recipes.config.docs import markdown
from recipes.config.schema.field import describe_type, leaves
from recipes.pointer_selector.config import PointerRecipe
from recipes.pointer_selector.resolve import VARIABLES, resolve


def key_table() -> str:
    """One row a key: name, variable, value in the recipe, type, meaning."""
    variables = {variable.key: f"`{variable.name}`" for variable in VARIABLES}
    recipe = resolve(environ={"HOME": "/nonexistent"})  # W&B is not part of the defaults of somebody logged out
    rows = []
    for path, leaf in leaves(PointerRecipe).items():
        value = attrgetter(path)(recipe)
        shown = "null" if value is None else str(value).replace("'", "")
        kind = describe_type(leaf.field.annotation)
        rows.append([f"`{path}`", variables.get(path, ""), shown, kind, leaf.info.doc])
    return markdown(["key", "variable", "default", "type", "what it is"], rows)
