"""The data of a recipe that is not here: made by its own command, or loaded from a hub."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from recipes.config import Recipe, path_keys
from recipes.config.resolve import replaced
from recipes.errors import RecipeError, first_line
from recipes.paths import ROOT, data_dir


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


def from_hub(recipe: Recipe, log: Callable[[str], None]) -> Recipe:
    """The recipe with parquet files in place of `org/set@split`, which verl does not read. RecipeError: one is lost."""
    keys = [key for key in path_keys(recipe) if key.kind == "data" and recipe.engine == "verl"]
    for name in dict.fromkeys(key.key for key in keys if key.on_hub and "://" not in key.path):
        files = [str(_file(key.path, name, log)) if key.on_hub else key.path for key in keys if key.key == name]
        recipe = replaced(recipe, {name: files}, f"loaded from {recipe.value(name)}")
    return recipe


def _file(name: str, key: str, log: Callable[[str], None]) -> Path:
    import datasets

    repository, _, split = name.rpartition("@")
    log(f"loading {name}")
    try:
        rows = datasets.load_dataset(repository, split=split)
    except Exception as error:  # of the network, of the hub, of the files there
        what = f"the data set {repository} cannot be loaded: {first_line(error)}"
        fix = "check its name, its split and the network, or give a file: load_dataset(...).to_parquet('rows.parquet')"
        raise RecipeError(what, where=f"{key}: {name}", fix=fix) from error
    stem = re.sub(r"[^\w-]+", "_", name).strip("_")[-60:]
    path = data_dir("hub") / f"{stem}-{rows._fingerprint}.parquet"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(".draft")
        rows.to_parquet(draft)
        draft.replace(path)
    return path
