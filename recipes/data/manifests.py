"""The manifest beside each parquet file: where its rows come from, their counts, and the file's size and hash."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from recipes.errors import RecipeError
from recipes.files import sha256


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A manifest.

    Attributes:
        source: where the rows come from, in words.
        command: what made them.
        settings: how they were made: of a generator, of a conversion, of a filter.
        counts: numbers and tables of the rows, such as rows by data source.
        dropped: rows that were left out, by reason.
        file, rows, bytes, sha256: of the parquet file; `columns`: name -> Arrow type.
    """

    task: str = ""
    split: str = ""
    source: str = ""
    command: str = ""
    seed: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    counts: Mapping[str, Any] = field(default_factory=dict)
    dropped: Mapping[str, int] = field(default_factory=dict)
    file: str = ""
    rows: int
    bytes: int = 0
    sha256: str
    columns: Mapping[str, str] = field(default_factory=dict)
    written_by: Mapping[str, str] = field(default_factory=dict)

    def as_json(self) -> str:
        """The manifest as text; fields that have their default value are left out."""
        values = _adapter().dump_python(self, mode="json", exclude_defaults=True)
        return json.dumps(values, indent=2, ensure_ascii=False) + "\n"


def plain(facts: Any) -> Any:
    """Convert facts to JSON's types, with counters in the order of their keys."""
    if isinstance(facts, Mapping):
        return {str(key): plain(facts[key]) for key in (sorted(facts) if isinstance(facts, Counter) else facts)}
    return [plain(each) for each in facts] if isinstance(facts, list | tuple) else facts


def manifest_path(path: Path) -> Path:
    """`train.manifest.json` for `train.parquet`."""
    return path.with_name(f"{path.stem}.manifest.json")


def read_manifest(path: Path, *, verify: bool = False) -> Manifest:
    """Read the manifest of a split, given the path of its parquet file.

    Args:
        verify: compare the parquet file's SHA-256 as well, which reads the whole file.

    Raises:
        RecipeError: there is no manifest, it is broken, or it describes another file.
    """
    beside, what = manifest_path(path), ""
    try:
        manifest = _adapter().validate_json(beside.read_bytes())
        if verify and manifest.sha256 != sha256(path):
            what = f"{path} is not the file that its manifest describes"
    except FileNotFoundError:
        what = f"{path} has no manifest"
    except ValidationError as error:
        first = error.errors()[0]
        what = f"the manifest is not valid: {'.'.join(map(str, first['loc']))}: {first['msg']}"
    if what:
        raise RecipeError(what, where=str(beside), fix="prepare the data again with --force")
    return manifest


def find_manifest(path: Path) -> Manifest | None:
    """`read_manifest`, or None where there is none; one that is broken raises RecipeError."""
    return read_manifest(path) if manifest_path(path).is_file() else None


@cache
def _adapter() -> TypeAdapter[Manifest]:
    return TypeAdapter(Manifest)
