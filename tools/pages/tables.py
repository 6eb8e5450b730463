"""Tables of the documentation that are generated from the schema."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from recipes.config import kl, resolve
from recipes.config.checks import ENGINES
from recipes.config.layers import flow
from recipes.config.schema import Leaf, Recipe, describe_type, leaves
from recipes.config.variables import CONTROLS, VARIABLES
from recipes.drawing import markdown
from recipes.errors import RecipeError

GROUPS = ("data", "algorithm", "worker.actor", "worker.rollout", "worker", "trainer", "monitor")
"""Beginnings of keys that have a table of their own; the first that fits."""


def schema_table() -> str:
    """Every key by group: its variable with synonyms, default, type, meaning, verl's name, what an engine cannot do."""
    variables: dict[str, list[str]] = {}
    for variable in VARIABLES:
        for path in variable.keys:
            variables.setdefault(path, []).extend(variable.names)
    groups: dict[str, list[Leaf]] = {}
    for path, leaf in leaves(Recipe).items():
        groups.setdefault(next((name for name in GROUPS if path.startswith(f"{name}.")), "top level"), []).append(leaf)
    parts = []
    for group, members in groups.items():
        title = "Top level" if group == "top level" else f"`{group}`"
        rows = [
            (
                f"`{leaf.path.removeprefix(f'{group}.')}`",
                _codes(variables.get(leaf.path, []), ", "),
                f"`{flow(leaf.default)}`",
                describe_type(leaf.field.annotation),
                leaf.info.doc,
                _codes(leaf.info.verl, "<br>"),
                _engines(leaf),
            )
            for leaf in members
        ]
        heads = ("key", "variable, synonyms", "default", "type", "meaning", "verl", "engines")
        parts.append(f"### {title}\n\n" + markdown(heads, rows))
    return "\n\n".join(parts)


def _codes(names: Iterable[str], separator: str) -> str:
    return separator.join(f"`{name}`" for name in names)


def _engines(leaf: Leaf) -> str:
    notes = [f"not {ENGINES[engine]}: {reason}" for engine, reason in leaf.info.not_on.items()]
    notes += [f"{ENGINES[engine]}: {', '.join(map(flow, values))}" for engine, values in leaf.info.values_on.items()]
    return "; ".join(notes)


def algorithm_table() -> str:
    """Every algorithm: what it changes, its keys beside GRPO's, when it helps, its engines and its paper."""
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


# Stated in every file so that nothing of another algorithm is left, and the default in all that follows from them.
_UNREMARKABLE = ("algorithm.use_kl_in_reward", "algorithm.kl_loss_type", "worker.actor.loss_scale_factor")


def _in_order(name: str) -> tuple[int, str]:
    """GRPO and its relatives first."""
    estimator = resolve.algorithm(name).values["algorithm.adv_estimator"]
    return int(estimator != "grpo"), "" if name == "grpo" else name


def _runs_on(engine: str, values: dict[str, Any]) -> bool:
    def takes(leaf: Leaf, value: Any) -> bool:
        allowed = leaf.info.values_on.get(engine, (value,))
        return value in allowed and (engine not in leaf.info.not_on or value == leaf.default)

    return all(takes(leaves(Recipe)[path], value) for path, value in values.items())


def kl_table() -> str:
    """Estimator x place: the expected gradient."""
    orders = {"kl": " (k1)", "mse": " (k2)", "low_var_kl": " (k3)", "abs": ""}
    orders |= {"kl+": " (k1, straight-through; verl)", "low_var_kl+": " (k3, straight-through; verl)"}

    def cell(estimator: str, place: kl.Place) -> str:
        gradient = kl.GRADIENTS[estimator, place]
        return f"{'right' if gradient.right else '**wrong**'}: {gradient.text}; {gradient.why}"

    rows = [(f"`{name}`{order}", cell(name, "reward"), cell(name, "loss")) for name, order in orders.items()]
    return markdown(("estimator", "in the reward (`kl_penalty`)", "in the loss (`kl_loss_type`)"), rows)


BLOCKS: dict[str, Callable[..., str]] = {
    "algorithms": algorithm_table,
    "kl": kl_table,
    "controls": lambda: markdown(("variable", "meaning"), ((f"`{name}`", doc) for name, doc in CONTROLS)),
    "schema": schema_table,
}


_BLOCK = re.compile(
    r"<!-- generated: (?P<name>[\w-]+)(?P<words>(?: [\w:.-]+)*) -->\n.*?<!-- end of (?P=name) -->", re.DOTALL
)
_OPEN = re.compile(r"<!-- generated: ([\w-]+)(?: [\w:.-]+)* -->")


def rendered(page: Path, blocks: Mapping[str, Callable[..., str]]) -> str:
    """The page with its generated blocks made anew. Raises RecipeError for a block that is unknown or not closed."""
    text = page.read_text(encoding="utf-8")
    closed = {match["name"] for match in _BLOCK.finditer(text)}
    for name in _OPEN.findall(text):
        if name not in blocks:
            raise RecipeError(
                f"unknown generated block {name!r}", where=str(page), fix=f"use one of {', '.join(blocks)}"
            )
        if name not in closed:
            raise RecipeError(
                f"the generated block {name!r} has no end", where=str(page), fix=f"add <!-- end of {name} -->"
            )

    def filled(match: re.Match[str]) -> str:
        name, words = match["name"], match["words"]
        return f"<!-- generated: {name}{words} -->\n\n{blocks[name](*words.split())}\n\n<!-- end of {name} -->"

    return _BLOCK.sub(filled, text)


def stale(page: Path, blocks: Mapping[str, Callable[..., str]]) -> bool:
    """Return whether the page says something else than the code does."""
    return rendered(page, blocks) != page.read_text(encoding="utf-8")
