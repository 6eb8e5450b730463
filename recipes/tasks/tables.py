"""The published data sets that tasks are made from: from the hub, or from local copies of their files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from recipes.data.hub import load_hub_table
from recipes.errors import RecipeError
from recipes.files import sha256

if TYPE_CHECKING:
    import pyarrow as pa


def load_table(
    repository: str,
    columns: Sequence[str],
    *,
    split: str = "train",
    revision: str = "main",
    name: str | None = None,
    files: Sequence[Path] | None = None,
) -> tuple[pa.Table, str]:
    """Return a split of a data set, and its source for the manifest.

    Args:
        repository: `owner/name` on the hub.
        columns: names that the table must have.
        split, revision, name: see `load_hub_table`.
        files: local copies, parquet or JSON lines; None for the hub.

    Raises:
        RecipeError: the hub does not answer, a file cannot be read, or a column is missing.
    """
    import pyarrow as pa
    import pyarrow.json
    import pyarrow.parquet as pq

    if files is None:
        table, commit = load_hub_table(repository, name=name, split=split, revision=revision)
        source = f"{repository}@{commit}"
    else:
        try:
            read = [pa.json.read_json(file) if file.suffix == ".jsonl" else pq.read_table(file) for file in files]
            table = pa.concat_tables(read)
            source = ", ".join(f"{file.name}, SHA-256 {sha256(file)}" for file in files)
        except (OSError, pa.ArrowException) as error:
            where, fix = ", ".join(map(str, files)), f"give a copy of the files of {repository}"
            raise RecipeError(f"the local copy cannot be read: {error}", where=where, fix=fix) from error
    if missing := [column for column in columns if column not in table.column_names]:
        raise RecipeError(
            f"there is no column {', '.join(missing)}, only {', '.join(table.column_names)}",
            where=source,
            fix=f"use a table with {', '.join(columns)}, as {repository} has them",
        )
    return table, source
