"""Tables of what is changed inside verl, vLLM and transformers, from the files that change it."""

from __future__ import annotations

import ast
import inspect

from recipes.drawing import markdown
from recipes.engines.verl import upstream
from recipes.paths import ROOT

ENGINE = ROOT / "recipes" / "engines" / "verl" / "engine.py"
PLACES = {
    "model": "processes with a model",
    "client": "processes that send weights",
    "server": "vLLM's server",
    "driver": "driver",
    "cpu verl": "CPUs: all",
    "cpu vllm": "CPUs: vLLM",
    "cpu agents": "CPUs: agent loops",
}


def upstream_table() -> str:
    """Each change without a hook, with its reason, gain and pull request."""
    rows = [
        (
            f"`{each.apply.__name__}`" + (", stays" if each.needed else ""),
            PLACES[each.place],
            _first_paragraph(inspect.getdoc(each.apply)),
            each.gain,
            each.pull_request,
        )
        for each in upstream.CHANGES
    ]
    return markdown(("change", "where", "what verl or vLLM does", "gain", "superfluous by"), rows)


def engine_table() -> str:
    """Each method that the registered engine overrides."""
    tree = ast.parse(ENGINE.read_text(encoding="utf-8"))
    engine = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "RecipesEngine")
    methods = [node for node in engine.body if isinstance(node, ast.FunctionDef)]
    return markdown(
        ("method", "what it does"),
        [
            (f"`{node.name}`", " ".join((ast.get_docstring(node) or "").split("\n\n")[:2]).replace("\n", " "))
            for node in methods
        ],
    )


def _first_paragraph(text: str | None) -> str:
    return (text or "").split("\n\n")[0].replace("\n", " ")
