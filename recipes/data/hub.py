"""Data sets of a hub, `org/set@split`, as parquet files: verl reads files alone."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from recipes.config import Recipe, path_keys
from recipes.config.resolve import replaced
from recipes.errors import RecipeError
from recipes.paths import data_dir


def from_hub(recipe: Recipe, log: Callable[[str], None]) -> Recipe:
    """The recipe with files in place of names on a hub, which EasyR1 reads itself. RecipeError: one is lost."""
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
        what = f"the data set {repository} cannot be loaded: {str(error).splitlines()[0]}"
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
