"""A resolved recipe as text."""

from __future__ import annotations

from typing import Any

from recipes.config import yaml_io
from recipes.config.layers import nest
from recipes.config.schema import Recipe, leaves


def resolved(recipe: Recipe) -> dict[str, Any]:
    """Every key that takes part, with its value, nested; the critic only where there is one. verl's own stay dotted."""
    critic = recipe.algorithm.adv_estimator == "gae"
    paths = [path for path in leaves(Recipe) if path != "verl" and (critic or not path.startswith("worker.critic."))]
    tree = {"resolved": True, **nest({path: recipe.value(path) for path in paths})}
    return {**tree, "verl": recipe.verl} if recipe.verl else tree


def to_yaml(recipe: Recipe, layers: bool = False) -> str:
    """The recipe as YAML that loads again; with `layers`, each key that a layer set says which."""
    text = yaml_io.dump(resolved(recipe))
    return _with_layers(text, recipe) if layers else text


def _with_layers(text: str, recipe: Recipe) -> str:
    """Put the source of each key behind its line; the dump is in block style, so indentation gives the path."""
    lines, parents = [], [(-1, "")]
    for line in text.splitlines():
        name, colon, _ = line.strip().partition(":")
        indent = len(line) - len(line.lstrip())
        if not colon or line.lstrip().startswith("-"):
            lines.append(line)
            continue
        while parents[-1][0] >= indent:
            parents.pop()
        path = f"{parents[-1][1]}.{name}".lstrip(".")
        parents.append((indent, path))
        source = recipe.sources.get(path) or recipe.sources.get(f"verl.{name}")
        lines.append(f"{line}  # {source}" if source else line)
    return "\n".join(lines) + "\n"
