"""Keys that stand as text in the package, in errors, checks and tables, are keys of the schema."""

from __future__ import annotations

import ast
import re

from recipes.config.names import verl_defaults
from recipes.config.schema import Recipe, leaves
from recipes.config.schema.keys import groups
from recipes.paths import ROOT
from recipes.pointer_selector.config import PointerRecipe

SECTION = r"(?<![\w./-])(?:data|algorithm|worker|trainer)(?!\.(?:pt|pkl|json|batch)\b)"  # files, a tensor's batch
KEY = re.compile(SECTION + r"(?:\.[a-z_0-9]+)+(?!\w|\.?[/(]|\.(?:py|yaml|parquet))")
VERL = ("recipes/config/schema/", "recipes/engines/", "recipes/preflight/model.py", "recipes/evaluation/")
"""Where verl's own names stand as well."""
SUPERVISED = ROOT / "recipes" / "sft.py"
"""Has the keys of verl's supervised trainer."""


def texts(tree):
    """Return the strings of a module with their lines, docstrings left out."""
    documents = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documents:
            yield node.lineno, node.value


def with_groups(keys):
    return {*keys, *(group for key in keys for group in groups(key))}


def test_dotted_keys_are_in_the_schema():
    ours, verls, pointers = (with_groups(keys) for keys in (leaves(Recipe), verl_defaults(), leaves(PointerRecipe)))
    wrong = []
    for path in sorted({*(ROOT / "recipes").rglob("*.py")} - {SUPERVISED}):
        name = str(path.relative_to(ROOT))
        known = pointers if "pointer_selector" in name else ours | verls if name.startswith(VERL) else ours
        for line, text in texts(ast.parse(path.read_text(encoding="utf-8"))):
            for key in KEY.findall(text):
                begun = key.endswith("_") and any(each.startswith(key) for each in known)  # goes on in an f-string
                wrong += [f"{name}:{line}: {key}"] if key not in known and not begun else []
    assert not wrong, "\n".join(wrong)
