"""Checks of the data files: readable, with the engine's columns, enough rows, and prompts within the limit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from recipes.config import PathKey, Recipe, path_keys
from recipes.config.resolve import replaced
from recipes.data.lengths import Lengths, check_lengths, count_split, tokenizer_of
from recipes.data.manifests import manifest_path
from recipes.data.rows import ID, engine_columns, prompt_column, row_count
from recipes.errors import RecipeError
from recipes.model_files import local_model

if TYPE_CHECKING:
    import pyarrow.parquet as pq


def files(recipe: Recipe, key: str | None = None) -> list[PathKey]:
    """The data files on this machine, training first; those of one key where it is given."""
    return [each for each in path_keys(recipe) if each.kind == "data" and not each.on_hub and key in (None, each.key)]


def missing(recipe: Recipe) -> list[PathKey]:
    """Data files that do not exist."""
    return [key for key in files(recipe) if not Path(key.path).exists()]


def columns(key: PathKey) -> list[str]:
    """The columns of a file."""
    return list(_open(key).schema_arrow.names)


def check_data(recipe: Recipe) -> list[str]:
    """Raise for a file that is missing, unreadable, empty or lacks columns; for too few rows; for prompts too long."""
    for key in missing(recipe):
        own = recipe.prepare and not key.source.by_user
        fix = f"make it with `python {' '.join(recipe.prepare)}`" if own else "give the path of a parquet file"
        raise recipe.error(f"the data file {key.path} does not exist", fix, key.key)
    for key in files(recipe):
        _check_columns(recipe, key)
    count = row_count(recipe)
    used = min(count, recipe.data.train_max_samples) if recipe.data.train_max_samples > 0 else count
    if used and used < recipe.data.rollout_batch_size:
        raise recipe.error(
            f"data.rollout_batch_size {recipe.data.rollout_batch_size} is larger than the {used} training rows",
            f"set ROLLOUT_BATCH_SIZE to {used} or less",
            "data.rollout_batch_size",
        )
    return _rows_without_ids(recipe)


def _rows_without_ids(recipe: Recipe) -> list[str]:
    """Return a remark on validation files whose rows have no id: what a run writes of them cannot be paired."""
    without = [key.path for key in files(recipe, "data.val_files") if ID not in columns(key)]
    if not without:
        return []
    again = f": make them again with `python {' '.join(recipe.prepare)} --force`" if recipe.prepare else ""
    return [f"the rows of {', '.join(without)} have no ids, so that two validations cannot be paired{again}"]


def _open(key: PathKey) -> pq.ParquetFile:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(key.path)
    except (pa.ArrowException, OSError) as error:
        raise RecipeError(
            f"{key.path} cannot be read as parquet: {str(error).splitlines()[0]}",
            where=f"{key.key}, from {key.source}",
            fix="make the file again",
        ) from error


def _check_columns(recipe: Recipe, key: PathKey) -> None:
    opened = _open(key)
    top_level = opened.schema_arrow.names
    # Columns in structs have dotted names; those in lists do not count.
    leaves = {opened.schema.column(index).path for index in range(len(opened.schema))}
    lacking = [name for name in engine_columns(recipe) if name not in leaves and name not in top_level]
    if lacking:
        raise recipe.error(
            f"{key.path} lacks {', '.join(lacking)} (its columns are {', '.join(top_level)})",
            f"{recipe.engine} reads {', '.join(engine_columns(recipe))}; see make_row in recipes/data/rows.py",
            key.key,
        )
    if opened.metadata.num_rows == 0:
        raise recipe.error(f"{key.path} has no rows", "make the file again, with at least one row", key.key)


def check_prompt_lengths(recipe: Recipe) -> list[str]:
    """Raise where training prompts are longer than the limit and nobody asked for them to be dropped; else remark."""
    lengths = prompt_lengths(recipe, files(recipe, "data.train_files"))
    return check_lengths(lengths, recipe) if lengths else []


def prompt_lengths(recipe: Recipe, keys: Sequence[PathKey]) -> Lengths | None:
    """The tokens of all prompts of some files; None where prompts have images, or cannot be counted here.

    Prompts are not counted by a tokenizer that is not on this machine, nor where a column of the user's own has them.
    """
    tokenizer, template = tokenizer_of(recipe)
    folder = local_model(tokenizer)
    if recipe.worker.rollout.limit_images or folder is None or not (folder / "tokenizer.json").is_file():
        return None
    if not all("prompt" in columns(key) for key in keys):
        return None
    try:
        counted = [count_split(Path(key.path), str(folder), template) for key in keys]
    except (RecipeError, OSError):
        return None
    return Lengths(sum((lengths.counts for lengths in counted), Counter()))


FILTER = "data.filter_overlong_prompts"
"""verl's filter of long prompts, left out where it would drop nothing."""


def without_filter(recipe: Recipe, log: Callable[[str], None]) -> Recipe:
    """The recipe without the filter, where all prompts of its files have been counted and none is over the limit.

    On GPUs verl measures every prompt again at each start, in 16 processes. The counts are kept beside the files. The
    filter stays for prompts with images, for files without a manifest or on a hub, and where verl's own keys below
    `data` (arguments of the chat template, tools) may make prompts longer.

    Args:
        log: takes a line for the user.
    """
    longest = longest_prompt(recipe) if recipe.engine == "verl" and recipe.hardware == "gpu" else None
    limit = recipe.data.max_prompt_length
    if not recipe.data.filter_overlong_prompts or longest is None or longest > limit:
        return recipe
    log(f"the longest prompt has {longest} tokens and the limit is {limit}: verl does not measure the prompts again")
    return replaced(recipe, {FILTER: False}, "no prompt is over the limit")


def longest_prompt(recipe: Recipe) -> int | None:
    """Tokens of the longest prompt of training and validation; None where that is not known for certain."""
    every = [key for key in path_keys(recipe) if key.kind == "data"]
    by_verls_name = any(name.lstrip("+").startswith("data.") for name in recipe.verl)
    if by_verls_name or prompt_column(recipe) != "prompt" or not every or any(key.on_hub for key in every):
        return None
    if not all(manifest_path(Path(key.path)).is_file() for key in every):
        return None
    lengths = prompt_lengths(recipe, every)
    return lengths.longest if lengths else None
