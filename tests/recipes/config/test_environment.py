"""Every environment variable that the code reads is in the table, is another program's, or is internal by its name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from recipes.config.variables import variable_names
from recipes.paths import ROOT
from recipes.pointer_selector.config import VARIABLES as POINTER_SELECTORS

INTERNAL = "RECIPES_"
"""Begins the variables by which processes of one run tell each other things; users set none of them."""
OTHERS = (
    *(
        "CUDA_",
        "GOMP_",
        "HF_",
        "MLFLOW_",
        "OMP_",
        "OPENAI_",
        "RAY_",
        "SWANLAB_",
        "TENSORBOARD_",
        "VLLM_",
        "WANDB_",
        "XDG_",
    ),
    *("HOME", "NETRC", "PATH", "PYTHONPATH", "TORCH_", "TRITON_", "TORCHINDUCTOR_", "VERL_"),
)
"""Beginnings of names that Python, libraries and loggers read themselves."""
ENVIRONMENTS = ("environ", "environment")


def constants(tree: ast.AST) -> dict[str, str]:
    """Names that a module gives to texts."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            names, values = (
                [each.elts if isinstance(each, ast.Tuple) else [each]][0] for each in (node.targets[0], node.value)
            )
            for name, value in zip(names, values, strict=False):
                if isinstance(name, ast.Name) and isinstance(value, ast.Constant) and isinstance(value.value, str):
                    found[name.id] = value.value
    return found


def reads(tree: ast.AST) -> Iterator[ast.expr]:
    """The names of `environ[name]`, `environ.get(name)`, `name in environ` and `os.getenv(name)`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and is_environment(node.value) and isinstance(node.ctx, ast.Load):
            yield node.slice
        elif isinstance(node, ast.Compare) and is_environment(node.comparators[0]):
            yield node.left
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            asked = node.func.attr in ("get", "setdefault", "pop") and is_environment(node.func.value)
            if asked or node.func.attr == "getenv":
                yield node.args[0]


def is_environment(node: ast.expr) -> bool:
    return getattr(node, "attr", getattr(node, "id", "")) in ENVIRONMENTS


def test_every_variable_that_is_read_stands_in_a_table_or_says_whose_it_is():
    known = variable_names() | variable_names(POINTER_SELECTORS)
    files = [file for folder in ("recipes", "scripts", "reward_functions") for file in (ROOT / folder).rglob("*.py")]
    trees: dict[Path, ast.AST] = {file: ast.parse(file.read_text(encoding="utf-8")) for file in files}
    everywhere = {name: text for tree in trees.values() for name, text in constants(tree).items() if text.isupper()}
    unknown = []
    for file, tree in trees.items():
        names = everywhere | constants(tree)
        for node in reads(tree):
            name = (
                node.value
                if isinstance(node, ast.Constant)
                else names.get(getattr(node, "id", getattr(node, "attr", "")))
            )
            if isinstance(name, str) and name not in known and not name.startswith((INTERNAL, *OTHERS)):
                unknown.append(f"{file.relative_to(ROOT)}:{node.lineno}: {name}")
    assert not unknown
