"""Recipes: a typed schema, layers of settings, environment variables, and the accounting of a step."""

from recipes.config.accounting import total_steps
from recipes.config.checks import check, remarks
from recipes.config.path_keys import PathKey, path_keys
from recipes.config.resolve import load, tasks, to_yaml
from recipes.config.schema import Recipe
from recipes.memory.gpus import visible_gpus

__all__ = [
    "PathKey",
    "Recipe",
    "check",
    "load",
    "path_keys",
    "remarks",
    "tasks",
    "to_yaml",
    "total_steps",
    "visible_gpus",
]
