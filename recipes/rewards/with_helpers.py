"""Loaded by the trainer in place of a reward file that imports modules of its own folder.

The reward's folder is the last on Python's path, so that its files hide no other module.
"""

from __future__ import annotations

import functools
import os
from types import ModuleType
from typing import Any

from recipes.python_files import find_beside, loaded

FILE = "RECIPES_REWARD_FILE"
"""The variable that names the reward's own file."""


@functools.cache
def _reward() -> ModuleType:
    find_beside(os.environ[FILE])
    return loaded(os.environ[FILE], "reward_with_helpers")


def __getattr__(name: str) -> Any:
    """The attribute `name` of the reward's file."""
    if name.startswith("__") or FILE not in os.environ:
        raise AttributeError(name)
    return getattr(_reward(), name)
