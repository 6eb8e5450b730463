"""A user's file by its suffix."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from recipes.errors import RecipeError
from recipes.tasks.custom.json_files import read as read_json
from recipes.tasks.custom.record import Place, Record, checked
from recipes.tasks.custom.table_files import read_csv, read_parquet

READERS = {
    ".json": read_json,
    ".jsonl": read_json,
    ".ndjson": read_json,
    ".csv": read_csv,
    ".tsv": read_csv,
    ".parquet": read_parquet,
}


def records(paths: list[Path], default_source: str | None = None) -> Iterator[Record]:
    """Every record of the files, checked, in their order.

    Raises:
        RecipeError: a file that is not there, of an unknown kind, or empty; the first record that is wrong.
    """
    for path in paths:
        empty = True
        for place, raw in raw_records(path):
            empty = False
            yield checked(raw, place, default_source)
        if empty:
            raise RecipeError("the file has no records", where=str(path), fix="put at least two into it")


def raw_records(path: Path) -> Iterator[tuple[Place, Any]]:
    """Every record as it stands in the file, with its place."""
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise RecipeError(
            f"{path.name} is neither JSON, JSONL, CSV nor parquet",
            where=str(path),
            fix=f"use one of the suffixes {', '.join(READERS)}",
        )
    if not path.is_file():
        raise RecipeError(f"the data file {path} does not exist", where="train_files, val_files", fix="mend the path")
    yield from reader(path)
