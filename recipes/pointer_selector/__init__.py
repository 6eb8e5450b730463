"""The pointer selector: a small policy that chooses in-context examples for a frozen model, trained offline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recipes.pointer_selector.selector import PointerSelector

__all__ = ["PointerSelector"]


def __getattr__(name: str) -> Any:
    """Import `PointerSelector` when it is first asked for, so that a command line's `--help` does not import torch."""
    if name == "PointerSelector":
        from recipes.pointer_selector.selector import PointerSelector

        return PointerSelector
    raise AttributeError(name)
