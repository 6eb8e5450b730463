"""What a run may use, and what it used."""

from __future__ import annotations

import sys

import torch

from recipes.errors import RecipeError


def device(asked: str) -> torch.device:
    """The device for `trainer.device`: a GPU if there is one, unless told otherwise.

    Raises:
        RecipeError: a GPU was asked for and torch sees none.
    """
    available = torch.cuda.is_available()
    if asked == "cuda" and not available:
        raise RecipeError(
            "a GPU was asked for, and torch sees none", where="trainer.device", fix="unset it, or use cpu"
        )
    return torch.device("cuda" if available and asked != "cpu" else "cpu")


def memory_peak_mib() -> float:
    """Largest resident size of this process so far, in MiB; 0 where the system does not say."""
    try:
        import resource
    except ImportError:  # Windows
        return 0.0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1024**2 if sys.platform == "darwin" else 1024)
