"""The rows: files that can be read, with the columns that the engine reads, enough of them, and short enough."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from recipes.config import PathKey, Recipe, path_keys
from recipes.data.rows import engine_columns, prompt_column
from recipes.errors import RecipeError

if TYPE_CHECKING:
    import pyarrow.parquet as pq

SAMPLED_ROWS = 256


def missing(recipe: Recipe) -> list[PathKey]:
    """Data files that do not exist."""
    return [key for key in files(recipe) if not Path(key.path).exists()]


def rows(recipe: Recipe, key: str = "data.train_files") -> int:
    """Rows of a split; 0 where a file is missing or cannot be read."""
    total = 0
    for file in [Path(entry.path) for entry in files(recipe) if entry.key == key]:
        if file.is_file():
            try:
                total += _open(file, key).metadata.num_rows
            except RecipeError:
                return 0
    return total


def check_data(recipe: Recipe) -> list[str]:
    """Raise for a file that is missing, unreadable, empty or lacks columns; for too few rows; for prompts too long."""
    for key in missing(recipe):
        raise RecipeError(
            f"the data file {key.path} does not exist",
            where=f"{key.key}, from {key.source}",
            fix=f"make it with `python {' '.join(recipe.prepare)}`"
            if recipe.prepare
            else "give the path of a parquet file",
        )
    for key in files(recipe):
        _has_columns(recipe, key)
    count = rows(recipe)
    used = min(count, recipe.data.train_max_samples) if recipe.data.train_max_samples > 0 else count
    if used and used < recipe.data.rollout_batch_size:
        raise RecipeError(
            f"data.rollout_batch_size {recipe.data.rollout_batch_size} is larger than the {used} training rows",
            where=f"data.rollout_batch_size, from {recipe.source_of('data.rollout_batch_size')}",
            fix=f"set ROLLOUT_BATCH_SIZE to {used} or less",
        )
    return _prompt_lengths(recipe)


def sample(recipe: Recipe, count: int, key: str = "data.train_files") -> list[dict[str, Any]]:
    """The first rows of a split."""
    found: list[dict[str, Any]] = []
    for entry in files(recipe):
        if entry.key == key and len(found) < count:
            batches = _open(Path(entry.path), key).iter_batches(batch_size=count)
            first = next(batches, None)
            found += first.to_pylist() if first is not None else []
    return found[:count]


def files(recipe: Recipe) -> list[PathKey]:
    """The data files on this machine, training first."""
    return [key for key in path_keys(recipe) if key.kind == "data" and not key.on_hub]


def names(key: PathKey) -> list[str]:
    """The columns of a file."""
    return list(_open(Path(key.path), f"{key.key}, from {key.source}").schema_arrow.names)


def _open(file: Path, where: str) -> pq.ParquetFile:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(file)
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise RecipeError(
            f"{file} cannot be read as parquet: {reason}", where=where, fix="make the file again"
        ) from error


def _has_columns(recipe: Recipe, key: PathKey) -> None:
    opened = _open(Path(key.path), f"{key.key}, from {key.source}")
    schema = opened.schema_arrow
    have = set(schema.names)
    for field in schema:
        if hasattr(field.type, "num_fields"):
            have |= {f"{field.name}.{field.type.field(index).name}" for index in range(field.type.num_fields)}
    lacking = [name for name in engine_columns(recipe) if name not in have]
    if lacking:
        raise RecipeError(
            f"{key.path} lacks {', '.join(lacking)} (its columns are {', '.join(schema.names)})",
            where=f"{key.key}, from {key.source}",
            fix=f"{recipe.engine} reads {', '.join(engine_columns(recipe))}; see make_row in recipes/data/rows.py",
        )
    if opened.metadata.num_rows == 0:
        raise RecipeError(
            f"{key.path} has no rows",
            where=f"{key.key}, from {key.source}",
            fix="make the file again, with at least one row",
        )


def _prompt_lengths(recipe: Recipe) -> list[str]:
    """Count the tokens of some prompts, chat template left out: what is too long even so is too long.

    Prompts with images are `images`' to count.
    """
    if recipe.worker.rollout.limit_images:
        return []
    tokenizer_file = Path(recipe.worker.actor.model.model_path) / "tokenizer.json"
    if not tokenizer_file.is_file():
        return []
    from tokenizers import Tokenizer

    limit = recipe.data.max_prompt_length
    prompts = [_text(row.get(prompt_column(recipe))) for row in sample(recipe, SAMPLED_ROWS)]
    encoded = Tokenizer.from_file(str(tokenizer_file)).encode_batch(prompts, add_special_tokens=False)
    lengths = [len(encoding.ids) for encoding in encoded]
    long = sum(length > limit for length in lengths)
    if lengths and long == len(lengths):
        raise RecipeError(
            f"every prompt is longer than data.max_prompt_length {limit}: the shortest has {min(lengths)} tokens",
            where=f"data.max_prompt_length, from {recipe.source_of('data.max_prompt_length')}",
            fix=f"set MAX_PROMPT_LENGTH to {max(lengths) + 64} (tokens of the chat template come on top)",
        )
    if not long:
        return []
    end = "they are dropped" if recipe.data.filter_overlong_prompts else "the trainer will stop there"
    return [f"{long} of the first {len(lengths)} prompts are longer than data.max_prompt_length {limit}: {end}"]


def _text(prompt: Any) -> str:
    if isinstance(prompt, str):
        return prompt
    parts = [message.get("content") for message in prompt or []]
    return "\n".join(part for part in parts if isinstance(part, str))
