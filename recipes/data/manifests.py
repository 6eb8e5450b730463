"""The manifest beside each parquet file: where its rows come from, their counts, and the file's size and hash."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from recipes.errors import RecipeError


class Manifest(BaseModel):
    """The fields of a manifest."""

    model_config = ConfigDict(frozen=True)

    task: str = ""
    split: str = ""
    source: str = ""  # where the rows come from, in words
    command: str = ""  # the command that made the rows
    seed: int | None = None
    settings: Mapping[str, Any] = {}  # of the generator, the conversion or the filter that made the rows
    counts: Mapping[str, Any] = {}  # numbers and tables of the rows, such as rows by data source
    dropped: Mapping[str, int] = {}  # rows that were left out, by reason
    file: str = ""  # the parquet file's name
    rows: int  # number of rows in the parquet file
    bytes: int = 0  # size of the parquet file
    sha256: str  # of the parquet file
    columns: Mapping[str, str] = {}  # name -> Arrow type
    written_by: Mapping[str, str] = {}


def manifest_path(path: Path) -> Path:
    """`train.manifest.json` for `train.parquet`."""
    return path.with_name(f"{path.stem}.manifest.json")


def read_manifest(path: Path) -> Manifest:
    """Read the manifest of a split, given the path of its parquet file.

    Raises:
        RecipeError: there is no manifest, or it is broken.
    """
    beside = manifest_path(path)
    try:
        return Manifest.model_validate_json(beside.read_bytes())
    except FileNotFoundError:
        what = f"{path} has no manifest"
    except ValidationError as error:
        first = error.errors()[0]
        what = f"the manifest is not valid: {'.'.join(map(str, first['loc']))}: {first['msg']}"
    raise RecipeError(what, where=str(beside), fix="make the data again: remove its folder, or --force")


def find_manifest(path: Path) -> Manifest | None:
    """`read_manifest`, or None where there is none; one that is broken raises RecipeError."""
    return read_manifest(path) if manifest_path(path).is_file() else None
