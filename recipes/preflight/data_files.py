"""Checks of the data files: readable, with the engine's columns, enough rows, and prompts within the limit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recipes.config import PathKey, Recipe, path_keys
from recipes.data.lengths import check_lengths, count_split, tokenizer_of
from recipes.data.rows import engine_columns, row_count
from recipes.errors import RecipeError
from recipes.model_files import local_model

if TYPE_CHECKING:
    import pyarrow.parquet as pq


def files(recipe: Recipe, key: str | None = None) -> list[PathKey]:
    """The data files on this machine, training files first; if `key` is given, only the files of that key."""
    return [each for each in path_keys(recipe) if each.kind == "data" and not each.on_hub and key in (None, each.key)]


def missing(recipe: Recipe) -> list[PathKey]:
    """Data files that do not exist."""
    return [key for key in files(recipe) if not Path(key.path).exists()]


def columns(key: PathKey) -> list[str]:
    """The columns of a file."""
    return list(_open(key).schema_arrow.names)


def check_data(recipe: Recipe) -> list[str]:
    """Raise for a file that is missing, unreadable, empty or lacks columns, and for fewer rows than a step takes."""
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
    return []


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


def read_rows(file: str, wanted: Sequence[str], at_once: int = 4096) -> Iterator[dict[str, Any]]:
    """Yield every row of a parquet file, with the wanted columns that the file has."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(file) as opened:
        columns = [name for name in wanted if name in opened.schema_arrow.names]
        for batch in opened.iter_batches(at_once, columns=columns):
            yield from batch.to_pylist()


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
    """Remark on training prompts that are longer than the limit; raise where `check_lengths` does.

    Prompts are not counted if the tokenizer is not on this machine or the prompt column is the user's own; `images.py`
    counts prompts with images.
    """
    tokenizer, template = tokenizer_of(recipe)
    folder, keys = local_model(tokenizer), files(recipe, "data.train_files")
    if recipe.worker.rollout.limit_images or folder is None or not (folder / "tokenizer.json").is_file():
        return []
    if not keys or not all("prompt" in columns(key) for key in keys):
        return []
    trusted = recipe.worker.actor.model.trust_remote_code
    try:
        counted = [count_split(Path(key.path), str(folder), template, trust_remote_code=trusted) for key in keys]
    except (RecipeError, OSError) as error:
        return [f"the prompts are not counted: {str(error).splitlines()[0]}"]
    return check_lengths(sum(counted, Counter()), recipe)
