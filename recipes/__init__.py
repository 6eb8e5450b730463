"""GRPO recipes for language and vision-language models on verl and EasyR1.

`from recipes import train, evaluate` imports the functions of `recipes.api`.
"""

from importlib import import_module
from typing import Any

from recipes import torchvision_operators

__version__ = "0.3.0"
torchvision_operators.tolerate()


def __getattr__(name: str) -> Any:
    """Import `train` and `evaluate` when they are asked for: every process of the trainer imports this package."""
    if name in ("train", "evaluate"):
        return getattr(import_module("recipes.api"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
