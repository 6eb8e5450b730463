"""verl's own keys: their defaults, and which of them the schema has under another name."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from typing import Any

from recipes.config import text
from recipes.config.layers import Source, flatten
from recipes.config.schema import Recipe, leaves
from recipes.config.text import did_you_mean
from recipes.errors import RecipeError

# First parts of names that only verl has; data, algorithm and trainer are in both trees.
ROOTS = (
    "actor_rollout_ref",
    "critic",
    "custom_reward_function",
    "distillation",
    "global_profiler",
    "ray_kwargs",
    "reward",
    "reward_model",
    "sandbox_fusion",
    "skip",
    "transfer_queue",
)


def package() -> Path | None:
    """Where verl is installed; None where it is not, or where the package of that name is EasyR1's."""
    found = importlib.util.find_spec("verl")
    if found is None or not found.submodule_search_locations:
        return None
    folder = Path(next(iter(found.submodule_search_locations)))
    return folder if (folder / "trainer" / "config" / "ppo_trainer.yaml").is_file() else None


@cache
def defaults() -> dict[str, Any]:
    """verl's default of every key, dotted; empty where verl is not installed."""
    folder = package()
    if folder is None:
        return {}
    path = folder / "trainer" / "config" / "_generated_ppo_trainer.yaml"
    return flatten(text.read(path, "verl's default configuration"))


@cache
def groups() -> frozenset[str]:
    """Every inner node of verl's tree."""
    return frozenset(
        ".".join(path.split(".")[:depth]) for path in defaults() for depth in range(1, path.count(".") + 1)
    )


@cache
def same_in_schema() -> dict[str, str]:
    """verl's name -> the schema's, where one is the other's value unchanged."""
    same: dict[str, str] = {}
    several: set[str] = set()
    for path, leaf in leaves(Recipe).items():
        if (leaf.info.via == "" or leaf.info.twin) and leaf.info.verl and not leaf.is_open:
            name = leaf.info.verl[0]
            several |= {name} & set(same)
            same[name] = path
    return {name: path for name, path in same.items() if name not in several}


def is_known(name: str) -> bool:
    """Whether verl's tree has the key, or a free mapping around it."""
    if name in defaults() or name in groups():
        return True
    parts = name.split(".")
    return any(defaults().get(".".join(parts[:depth])) == {} for depth in range(1, len(parts)))


def is_native(name: str) -> bool:
    """Whether a `key=value` argument that the schema does not know speaks to verl."""
    return name.startswith("+") or name.split(".")[0] in ROOTS or (name in defaults() and name not in leaves(Recipe))


def check(name: str, value: Any, source: Source) -> None:
    """Raise RecipeError if verl does not know the key, or wants another type. A leading + adds a key on purpose."""
    if not defaults() or name.startswith("+"):
        return
    if not is_known(name):
        raise RecipeError(
            f"verl has no key {name}",
            where=source.where,
            fix=did_you_mean(name, defaults()) or f"write +{name} if verl accepts it all the same",
        )
    if name in groups() and not isinstance(value, dict):
        raise RecipeError(f"{name} is a group of verl's keys, not a value: {value!r}", where=source.where)
    default = defaults().get(name)
    if _clashes(default, value):
        raise RecipeError(
            f"{name} is {value!r}, but verl's default is {default!r}: another type",
            where=source.where,
            fix=f"give a {'true or false' if isinstance(default, bool) else 'number'}",
        )


def _clashes(default: Any, value: Any) -> bool:
    if isinstance(default, bool):
        return not isinstance(value, bool) and value is not None
    if isinstance(default, int | float):
        return isinstance(value, bool | str | list | dict)
    return False
