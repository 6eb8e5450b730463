"""Tables of the documentation: keys, variables, algorithms, changes inside verl, versions, what was learned."""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from recipes.config import resolve
from recipes.config.checks import ENGINES
from recipes.config.schema import Leaf, Recipe, leaves
from recipes.config.variables import CONTROLS
from recipes.drawing import markdown
from recipes.engines import versions
from recipes.engines.verl import upstream
from recipes.errors import RecipeError
from recipes.paths import ROOT
from recipes.pointer_selector import config as pointer_selector
from recipes.settings import flatten
from recipes.yaml_text import flow, read, shown_path


def schema_table() -> str:
    """Every key: its variable with synonyms, default, type, meaning, verl's name, what an engine cannot do."""
    rows = (
        (
            f"`{path}`",
            _codes(leaf.info.variable.split(), ", "),
            f"`{flow(leaf.default)}`",
            describe_type(leaf.field.annotation),
            leaf.info.doc,
            _codes(leaf.info.verl, "<br>"),
            _engines(leaf),
        )
        for path, leaf in leaves(Recipe).items()
    )
    return markdown(("key", "variable, synonyms", "default", "type", "meaning", "verl", "engines"), rows)


def _codes(names: Iterable[str], separator: str) -> str:
    return separator.join(f"`{name}`" for name in names)


def _engines(leaf: Leaf) -> str:
    notes = [f"not {name}" for engine, name in ENGINES.items() if engine not in leaf.info.engines]
    notes += [f"{ENGINES[engine]}: {', '.join(map(flow, values))}" for engine, values in leaf.info.values_on.items()]
    return "; ".join(notes)


def pointer_selector_table() -> str:
    """Every key of the pointer selector: its variable, default and meaning."""
    keys = leaves(pointer_selector.PointerRecipe)
    values = flatten(pointer_selector.resolve(environ={}).model_dump())
    rows = (
        (
            f"`{path}`",
            _codes(keys[path].info.variable.split(), ", "),
            f"`{flow(value)}`",
            keys[path].info.doc,
        )
        for path, value in values.items()
    )
    return markdown(("key", "variable", "default", "meaning"), rows)


def control_table() -> str:
    """The launcher's own variables."""
    return markdown(("variable", "meaning"), ((f"`{name}`", doc) for name, doc in CONTROLS.items()))


def algorithm_table() -> str:
    """Every algorithm: what it changes, its keys that differ from GRPO's, when it helps, its engines and its paper."""
    grpo = resolve.algorithm("grpo").values
    rows = []
    for name in sorted(resolve.algorithms(), key=_in_order):
        chosen = resolve.algorithm(name)
        own = {path: value for path, value in chosen.values.items() if name == "grpo" or grpo.get(path, grpo) != value}
        keys = "<br>".join(f"`{path}: {flow(value)}`" for path, value in own.items() if path not in _UNREMARKABLE)
        engines = ", ".join(ENGINES[engine] for engine in ENGINES if _runs_on(engine, chosen.values))
        paper = f"[{chosen.paper}](https://arxiv.org/abs/{chosen.paper.removeprefix('arXiv:')})"
        rows.append((f"`{name}`", f"{chosen.title}: {chosen.changes}", keys, chosen.use, engines, paper))
    return markdown(
        ("`ALGORITHM`", "what it changes", "keys (`grpo`: all; others: beside `grpo`)", "when", "engines", "paper"),
        rows,
    )


# Keys left out of the table: algorithms state them only to reset another algorithm's value.
_UNREMARKABLE = ("algorithm.use_kl_in_reward", "algorithm.kl_loss_type", "worker.actor.loss_scale_factor")


def _in_order(name: str) -> tuple[int, str]:
    """Sort key: `grpo` first, then the others with GRPO's advantage estimator, then the rest."""
    estimator = resolve.algorithm(name).values["algorithm.adv_estimator"]
    return int(estimator != "grpo"), "" if name == "grpo" else name


def _runs_on(engine: str, values: dict[str, Any]) -> bool:
    def takes(leaf: Leaf, value: Any) -> bool:
        allowed = leaf.info.values_on.get(engine, (value,))
        return value in allowed and (engine in leaf.info.engines or value == leaf.default)

    return all(takes(leaves(Recipe)[path], value) for path, value in values.items())


ENGINE = ROOT / "recipes" / "engines" / "verl" / "engine.py"
PLACES = {
    "model": "processes with a model",
    "server": "vLLM's server",
    "agent loops": "workers of agent loops",
    "driver": "driver",
    "cpu verl": "CPUs: all",
    "cpu vllm": "CPUs: vLLM",
}
UPSTREAM = Path(__file__).with_name("upstream.yaml")
"""Name of a change -> what it gains, and the pull request that would replace it."""


def upstream_table() -> str:
    """Each change for which verl or vLLM has no hook, with its reason, gain and pull request.

    Raises RecipeError for a change without an entry in upstream.yaml, or an entry without a change.
    """
    told = read(UPSTREAM)
    if alone := told.keys() ^ {each.apply.__name__ for each in upstream.CHANGES}:
        raise RecipeError(
            f"a change and its entry go together, and one is alone: {', '.join(sorted(alone))}",
            where=shown_path(UPSTREAM),
            fix="give each listed function of recipes/engines/verl/upstream.py one entry of its name",
        )
    rows = [
        (
            f"`{each.apply.__name__}`" + (", stays" if each.needed else ""),
            PLACES[each.place],
            (inspect.getdoc(each.apply) or "").split("\n\n")[0].replace("\n", " "),
            told[each.apply.__name__]["gain"],
            told[each.apply.__name__]["pull_request"],
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


def results_table(results: Sequence[Path]) -> str:
    """One row for each file of `tools.learning_curves`: accuracy at each validation, what was gained, and pass@k."""
    rows = []
    for path in results:
        result = json.loads(path.read_text(encoding="utf-8"))
        curves, change = result["curves"], result["change"]
        paired = change if len(curves) > 1 else (curves[0]["paired"] or {}).get("difference")
        points = f"{100 * change['value']:+.1f}, not paired"
        if paired:
            points = f"{100 * paired['value']:+.1f} ({100 * paired['low']:+.1f} to {100 * paired['high']:+.1f})"
        pairs = [curve["paired"] for curve in curves if curve["paired"]]
        minutes = [f"{curve['seconds'] / 60:.0f}" for curve in curves if curve.get("seconds")]
        last = [curve["validation"][max(curve["validation"], key=int)]["value"] for curve in curves]
        passes = [
            f"{k}: {100 * each['before']['value']:.1f}% to {100 * each['after']['value']:.1f}%"
            for k, each in (result["pass_at_k"] or {}).items()
        ]
        rows.append(
            {
                "run": f"`{path.stem}`",
                "machine": result["machine"],
                "minutes, each seed": ", ".join(minutes) or "-",
                "step: accuracy, mean of the seeds": "<br>".join(
                    f"{step}: {at['value']:.3f}" for step, at in result["mean"].items()
                ),
                "last step, each seed": ", ".join(f"{value:.3f}" for value in last),
                "points gained, 95% interval": points,
                "won:lost, each seed": ", ".join(f"{each['won']}:{each['lost']}" for each in pairs) or "-",
                "pass@k": "<br>".join(passes) or "-",
                "what was learned": result["learned"],
            }
        )
    return markdown(tuple(rows[0]), [tuple(row.values()) for row in rows])


def learning_table() -> str:
    """Return what each recipe's tiny model learned, from the files of `python -m tools.learning_curves`."""
    folder = ROOT / "docs" / "results"
    return results_table([*sorted(folder.glob("*_tiny_cpu.json")), *sorted(folder.glob("*_h200.json"))])


def versions_table() -> str:
    """The versions that the check before the start asks for, by kind of machine."""
    rows = [
        (f"`{name}`", number, machine) for machine, each in versions.TESTED.items() for name, number in each.items()
    ]
    return markdown(("package", "version", "machine"), [*rows, ("`ray`", versions.TESTED_RAY, "both")])


def describe_type(annotation: Any) -> str:
    """A type in a user's words: `int`, `int or null`, `one of grpo, rloo`, `list of str`."""
    origin, args = get_origin(annotation), get_args(annotation)
    if annotation is type(None):
        return "null"
    if origin is Literal:
        return "one of " + ", ".join(str(value) for value in args)
    if origin in (Union, UnionType):
        return " or ".join(describe_type(part) for part in args)
    if origin is Annotated:
        return describe_type(args[0])
    if origin is list:
        return f"list of {describe_type(args[0])}"
    if origin is dict:
        return "mapping"
    return {str: "text", bool: "true or false", float: "number", int: "whole number"}.get(annotation, str(annotation))
