"""The data of a task: made where it is missing, and checked against the reward."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from recipes.config import Recipe, path_keys
from recipes.errors import RecipeError
from recipes.paths import ROOT


def is_to_make(recipe: Recipe) -> bool:
    """Whether data files that the recipe itself names are missing and the recipe has a `prepare` command."""
    files = [key for key in path_keys(recipe) if key.kind == "data" and not key.on_hub and not key.source.by_user]
    return bool(recipe.prepare) and not all(Path(key.path).exists() for key in files)


def make_missing(recipe: Recipe, log: Callable[[str], None]) -> None:
    """Run the recipe's `prepare` command if data files that the recipe itself names are missing.

    Args:
        log: takes the line that says what is run.

    Raises:
        RecipeError: the command failed.
    """
    if not is_to_make(recipe):
        return
    command = " ".join(recipe.prepare)
    log(f"making the data: python {command}")
    code = subprocess.run([sys.executable, *recipe.prepare], cwd=ROOT, check=False).returncode
    if code:
        raise RecipeError(
            f"the data could not be made (exit code {code}; its message is above)",
            where=f"prepare, from {recipe.source_of('prepare')}",
            fix=f"mend it, then: python {command}",
        )
