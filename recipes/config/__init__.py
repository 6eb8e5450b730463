"""Recipes: a typed schema, four layers, one table of environment variables, and the accounting of a step."""

from __future__ import annotations

from recipes.config.accounting import Accounting, accounting
from recipes.config.checks import check, remarks
from recipes.config.environment import dry_run
from recipes.config.hardware import visible_gpus
from recipes.config.locate import PathKey, path_keys, split_function
from recipes.config.loggers import logged_in, wandb_environment
from recipes.config.render import to_yaml
from recipes.config.resolve import find, load, tasks
from recipes.config.schema import Recipe

__all__ = [
    "Accounting",
    "PathKey",
    "Recipe",
    "accounting",
    "check",
    "dry_run",
    "find",
    "load",
    "logged_in",
    "path_keys",
    "remarks",
    "split_function",
    "tasks",
    "to_yaml",
    "visible_gpus",
    "wandb_environment",
]
