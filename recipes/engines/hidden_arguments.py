"""A reward with what the trainer does not give it: secret arguments, and the modules that lie beside its file.

The engines load this file by path instead of the reward's own, under the name of its function. The trainer prints its
whole configuration, and hands it to loggers; so secret arguments come from the environment. The reward's folder is the
last on Python's path, so that no file there takes the place of another program's module.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
from types import ModuleType
from typing import Any

from recipes.python_files import find_beside, loaded

FILE, ARGUMENTS = "RECIPES_REWARD_FILE", "RECIPES_REWARD_SECRETS"
"""Variables: the reward's own file, and its secret arguments as JSON."""


@functools.cache
def _reward() -> ModuleType:
    find_beside(os.environ[FILE])
    return loaded(os.environ[FILE], "reward_with_hidden_arguments")


def __getattr__(name: str) -> Any:
    """A name of the reward's file; a function gets the secret arguments besides those of its caller."""
    if name.startswith("__") or FILE not in os.environ:
        raise AttributeError(name)
    value = getattr(_reward(), name)
    if not inspect.isroutine(value):
        return value
    hidden = json.loads(os.environ.get(ARGUMENTS) or "{}")
    if inspect.iscoroutinefunction(value):

        @functools.wraps(value)
        async def call_async(*args: Any, **kwargs: Any) -> Any:
            return await value(*args, **{**kwargs, **hidden})

        return call_async

    @functools.wraps(value)
    def call(*args: Any, **kwargs: Any) -> Any:
        return value(*args, **{**kwargs, **hidden})

    return call
