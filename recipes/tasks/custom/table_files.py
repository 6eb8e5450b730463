"""CSV and parquet, one record after the other."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from recipes.errors import RecipeError
from recipes.tasks.custom.record import EXAMPLE, Place

DELIMITERS = ",;\t"
LONGEST_CELL = 16 << 20
BATCH = 1024
CSV_EXAMPLE = 'prompt,ground_truth,data_source\n"What is 17 + 25?",42,math_reasoning'


def read_csv(path: Path) -> Iterator[tuple[Place, Any]]:
    """Every row of a CSV file with a head line; separated by commas, semicolons or tabs.

    Empty cells are fields that the row does not have. A prompt or a list of images may be JSON in its cell.

    Raises:
        RecipeError: no head line, a row of another length, or text that is not UTF-8.
    """
    csv.field_size_limit(LONGEST_CELL)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            head = file.readline()
            file.seek(0)
            delimiter = max(DELIMITERS, key=head.count)
            reader = csv.reader(file, delimiter=delimiter, strict=True)
            yield from _rows(reader, path)
    except UnicodeDecodeError as error:
        raise RecipeError(f"the file is not UTF-8: {error.reason}", where=str(path), fix="save it as UTF-8") from error


def _rows(reader: Any, path: Path) -> Iterator[tuple[Place, Any]]:
    names: list[str] | None = None
    begin = 1
    while True:
        begin = reader.line_num + 1
        place = Place(str(path), begin)
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise RecipeError(
                f"this is not CSV: {error}", where=str(place), fix="put cells with quotes or line breaks into quotes"
            ) from error
        if cells is None:
            break
        if not any(cell.strip() for cell in cells):
            continue
        if names is None:
            names = _head(cells, place)
            continue
        if len(cells) != len(names):
            raise RecipeError(
                f"{len(cells)} cells, but the head line names {len(names)} fields",
                where=str(place),
                fix="put cells with a separator into quotes",
            )
        yield place, {name: _cell(name, cell) for name, cell in zip(names, cells, strict=True) if cell.strip()}


def _head(cells: list[str], place: Place) -> list[str]:
    names = [cell.strip() for cell in cells]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise RecipeError(f"the field {twice!r} is there twice", where=str(place), fix="leave one of them")
    if "prompt" not in names and "ground_truth" not in names:
        raise RecipeError(
            f"the head line names {', '.join(names)}, not prompt and ground_truth",
            where=str(place),
            fix=f"a right file: {CSV_EXAMPLE!r}",
        )
    return names


def _cell(name: str, cell: str) -> Any:
    """The text of a cell; chat messages and several images are JSON."""
    if name in ("prompt", "images") and cell.lstrip().startswith("["):
        try:
            value = json.loads(cell)
        except ValueError:
            return cell  # a prompt may well begin with a bracket
        return value if name == "images" or (value and all(isinstance(item, dict) for item in value)) else cell
    return cell


def read_parquet(path: Path) -> Iterator[tuple[Place, Any]]:
    """Every row of a parquet file. Rows that are finished for verl give the fields they were made from.

    Raises:
        RecipeError: a file that is no parquet.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            number = 0
            for batch in file.iter_batches(BATCH):
                for row in batch.to_pylist():
                    number += 1
                    yield Place(str(path), number, "row"), _plain(row)
    except (pa.ArrowException, OSError) as error:
        raise RecipeError(
            f"the file cannot be read as parquet: {str(error).splitlines()[0]}",
            where=str(path),
            fix=f"make it again; or use JSON lines such as {EXAMPLE}",
        ) from error


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    finished = row.get("reward_model")
    if not (isinstance(finished, dict) and "ground_truth" in finished and "ground_truth" not in row):
        return row
    extra = row.get("extra_info") or {}
    kept = {name: row[name] for name in ("prompt", "data_source", "images") if row.get(name) is not None}
    solution = extra.get("solution") if isinstance(extra, dict) else None
    return {**kept, "ground_truth": finished["ground_truth"], **({"solution": solution} if solution else {})}
