"""Defaults of a tree of dataclasses, read from their source without running it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from recipes.errors import RecipeError


def defaults(files: Iterable[Path], root: str) -> dict[str, Any]:
    """Dotted key -> default of every field below the dataclass `root`, without those that the constructor refuses.

    Tuples become lists, as in YAML. Raises RecipeError for a file that is missing or a default that is no constant.
    """
    classes: dict[str, ast.ClassDef] = {}
    for path in files:
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (OSError, SyntaxError) as error:
            raise RecipeError(f"cannot read the defaults in {path.name}: {error}", where=str(path)) from error
        classes.update({node.name: node for node in tree.body if isinstance(node, ast.ClassDef)})
    if root not in classes:
        raise RecipeError(f"there is no class {root}", where=", ".join(map(str, files)))
    return _fields(classes, root, "")


def _fields(classes: Mapping[str, ast.ClassDef], name: str, prefix: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for node in classes[name].body:
        if not (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None):
            continue
        key = f"{prefix}{node.target.id}"
        options = _options(node.value)
        if options is None:
            found[key] = _constant(node.value, key)
        elif isinstance(options.get("init"), ast.Constant) and options["init"].value is False:
            continue
        elif isinstance(factory := options.get("default_factory"), ast.Name) and factory.id in classes:
            found.update(_fields(classes, factory.id, f"{key}."))
        elif isinstance(factory, ast.Name) and factory.id in ("dict", "list"):
            found[key] = {} if factory.id == "dict" else []
        else:
            found[key] = _constant(options.get("default", node.value), key)
    return found


def _options(value: ast.expr) -> dict[str | None, ast.expr] | None:
    """The keywords of `field(...)`; None for any other default."""
    if isinstance(value, ast.Call) and getattr(value.func, "id", "") == "field":
        return {keyword.arg: keyword.value for keyword in value.keywords}
    return None


def _constant(value: ast.expr, key: str) -> Any:
    try:
        constant = ast.literal_eval(value)
    except ValueError as error:
        raise RecipeError(f"the default of {key} is no constant", where=ast.unparse(value)) from error
    return list(constant) if isinstance(constant, tuple) else constant
