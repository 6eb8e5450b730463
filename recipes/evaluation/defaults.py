"""What a task's recipe says about data, reward and sampling; every value can be overridden on the command line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipes.errors import RecipeError


@dataclass(frozen=True)
class Defaults:
    """The recipe's values that an evaluation needs; `batch` is the number of prompts of a training step."""

    train_files: list[Path]
    test_files: list[Path]
    reward: str
    reward_arguments: dict[str, Any]
    n: int
    temperature: float
    top_p: float
    max_tokens: int
    batch: int
    tensor_parallel_size: int
    chat_template: str = ""


def from_recipe(task: str) -> Defaults:
    """Read `configs/<task>.yaml` with the layers above it (hardware, environment)."""
    from recipes.config import load

    recipe = load(task)
    rollout, template = recipe.worker.rollout, recipe.data.override_chat_template
    return Defaults(
        train_files=_paths(recipe.data.train_files),
        test_files=_paths(recipe.data.val_files),
        reward=recipe.worker.reward.reward_function or f"reward_functions/{task}.py",
        reward_arguments=dict(recipe.worker.reward.reward_function_kwargs),
        n=rollout.n,
        temperature=rollout.temperature,
        top_p=rollout.top_p,
        max_tokens=recipe.data.max_response_length,
        batch=recipe.data.rollout_batch_size,
        tensor_parallel_size=1 if recipe.hardware == "cpu" else rollout.tensor_parallel_size,
        chat_template=Path(template).read_text(encoding="utf-8") if template else "",
    )


def existing(files: list[Path], task: str) -> Path:
    """The recipe's data file, made as the launcher makes it where it is missing."""
    if len(files) != 1:
        raise RecipeError(
            f"the recipe names {len(files)} data files, and an evaluation takes one",
            where="the recipe's data.train_files or data.val_files",
            fix=f"choose with --data_path: {', '.join(map(str, files))}",
        )
    (path,) = files
    if not path.is_file():
        _prepare(task)
    if not path.is_file():
        raise RecipeError(
            f"there is no data file {path}",
            where="the recipe's data.train_files or data.val_files",
            fix="make it, or name a file with --data_path",
        )
    return path


def _prepare(task: str) -> None:
    from rich.console import Console

    from recipes.config import load
    from recipes.launch import prepare

    prepare(load(task), Console(stderr=True))


def _paths(files: str | list[str]) -> list[Path]:
    return [Path(file) for file in ([files] if isinstance(files, str) else files)]
