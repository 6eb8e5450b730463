"""The recipe in EasyR1's words. Names and nesting are EasyR1's already; what only verl has must be neutral."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recipes.config import kl
from recipes.config.layers import flow
from recipes.config.machine import logger_environment
from recipes.config.path_keys import split_function
from recipes.config.schema import Recipe, leaves
from recipes.engines.support import OWN, require_supported
from recipes.errors import RecipeError
from recipes.paths import run_dir

VALIDATION = "worker.rollout.val_override_config"
ADAPTER = Path(__file__).with_name("easyr1_reward.py")
BATCH = "compute_score_batch"


def translate(recipe: Recipe) -> dict[str, Any]:
    """EasyR1's dotted keys for the recipe.

    Raises RecipeError for a key that EasyR1 cannot do, for keys below `verl`, and on a machine without a GPU.
    """
    if recipe.hardware == "cpu":
        raise RecipeError("EasyR1 needs a GPU", where="engine: easyr1", fix="use ENGINE=verl on a machine without one")
    if recipe.verl:
        name = next(iter(recipe.verl))
        raise RecipeError(
            f"{name} is a key of verl, and the engine is EasyR1",
            where=recipe.source_of(f"verl.{name}").where,
            fix="use ENGINE=verl, or leave it out",
        )
    require_supported(recipe, "easyr1")
    keys = {
        path: recipe.value(path)
        for path, leaf in leaves(Recipe).items()
        if path not in OWN and "easyr1" not in leaf.info.not_on and not path.startswith(VALIDATION)
    }
    validation = recipe.worker.rollout.val_override_config.model_dump(exclude_none=True)
    keys |= {VALIDATION: validation, **_filled(recipe)}
    del keys["algorithm.kl_loss_coef"], keys["algorithm.kl_loss_type"]
    return keys


def _filled(recipe: Recipe) -> dict[str, Any]:
    """Keys whose null means another key's value, or something that EasyR1 would take otherwise."""
    model = recipe.worker.actor.model.model_path
    keys: dict[str, Any] = {"data.prompt_key": recipe.data.prompt_key or "problem"}
    keys["worker.critic.model.model_path"] = recipe.worker.critic.model.model_path or model
    for name in ("train_files", "val_files"):
        files = recipe.value(f"data.{name}")
        if isinstance(files, list):
            raise RecipeError(
                f"EasyR1 reads one file as data.{name}, not {len(files)}",
                where=recipe.source_of(f"data.{name}").where,
                fix="join the files, or use engine verl",
            )
    term = kl.in_loss(recipe)
    if term:
        keys["algorithm.kl_coef"], keys["algorithm.kl_penalty"] = term.coefficient, term.estimator
    if recipe.worker.reward.reward_function is not None:
        location, arguments = reward(recipe)
        keys["worker.reward.reward_function"] = location
        keys["worker.reward.reward_function_kwargs"] = arguments
    return keys


def reward(recipe: Recipe) -> tuple[str, dict[str, Any]]:
    """`file:function` and its further arguments; a file that only judges single responses is called through an adapter.

    Asked of a recipe that has a reward function.
    """
    reward = recipe.worker.reward
    path, name = split_function(str(reward.reward_function))
    if name is None and _defined(Path(path)).isdisjoint({BATCH}) and "compute_score" in _defined(Path(path)):
        return f"{ADAPTER}:{BATCH}", {"path": path, "arguments": reward.reward_function_kwargs}
    return f"{path}:{name or BATCH}", reward.reward_function_kwargs


def _defined(file: Path) -> set[str]:
    """Names that a Python file has, read without running it; none where that cannot be read, which others report."""
    try:
        body = ast.parse(file.read_text(encoding="utf-8")).body
    except (OSError, SyntaxError, ValueError):
        return set()
    names = {node.name for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    imported = [alias for node in body if isinstance(node, ast.ImportFrom) for alias in node.names]
    assigned = [target for node in body if isinstance(node, ast.Assign) for target in node.targets]
    names |= {alias.asname or alias.name for alias in imported}
    return names | {target.id for target in assigned if isinstance(target, ast.Name)}


def overrides(recipe: Recipe) -> list[str]:
    """`key=value` for EasyR1's command line, which OmegaConf reads as YAML."""
    return [f"{name}={flow(value)}" for name, value in sorted(translate(recipe).items())]


def command(recipe: Recipe) -> list[str]:
    """The argument vector that starts EasyR1's trainer, with this Python."""
    return [sys.executable, "-m", "verl.trainer.main", *overrides(recipe)]


def environment(recipe: Recipe, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Variables that the trainer needs besides those it inherits."""
    folder = run_dir(recipe.trainer.experiment_name or recipe.name)
    return {"PYTHONUNBUFFERED": "1", **logger_environment(list(recipe.trainer.logger), folder, environ)}
