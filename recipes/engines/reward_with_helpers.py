"""A reward that imports modules of its own folder, in place of its file, which the trainer loads by its path.

The reward's folder is the last on Python's path, so that no file there takes the place of another program's module.
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
    """A name of the reward's file."""
    if name.startswith("__") or FILE not in os.environ:
        raise AttributeError(name)
    return getattr(_reward(), name)
