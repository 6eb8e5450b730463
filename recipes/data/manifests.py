"""The manifest beside each parquet file: where its rows come from, their counts, and the file's size and hash."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from recipes.errors import RecipeError
from recipes.provenance import sha256

HELD_OUT = "in_validation_data"
"""Reason in `SplitCounts.dropped` for training rows whose prompt or image is also in the validation data."""


@dataclass(frozen=True)
class SourceFile:
    """A user's file that rows were made from."""

    file: str
    sha256: str


@dataclass(frozen=True)
class DroppedRow:
    """A row of the source that a filter left out; `row` counts from 0."""

    row: int
    why: str


@dataclass(frozen=True)
class Filter:
    """What a filter by a signal probe did.

    Attributes:
        dropped: number of rows left out; `why` counts them by reason, `rows` lists each.
        not_probed: number of rows kept without a probe.
    """

    dropped: int
    not_probed: int
    why: Mapping[str, int]
    rows: tuple[DroppedRow, ...]


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where the rows of a split come from, as far as that is known before they are made.

    Attributes:
        source: a description in words, or the user's files.
        val_share: share of a user's rows that validates; None where validation data were given.
        settings: fields of the generator's settings, which are the task's own.
        buckets: the shares of all problems that these were drawn from (`splits.SHARES`).
        published_rows: how many rows the published data set has.
        probe: how the filter's probe was made (model, sampling, reward), as the evaluation's report states it.
        source_manifest: the manifest of the file that was filtered.
    """

    task: str = ""
    split: str = ""
    command: str = ""
    source: str | tuple[SourceFile, ...] = ""
    seed: int | None = None
    val_share: float | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    buckets: tuple[str, ...] = ()
    published_rows: int | None = None
    filter: Filter | None = None
    probe: Mapping[str, Any] = field(default_factory=dict)
    source_manifest: Manifest | None = None

    @property
    def source_text(self) -> str:
        """The source in one line."""
        return self.source if isinstance(self.source, str) else ", ".join(each.file for each in self.source)


@dataclass(frozen=True, kw_only=True)
class SplitCounts:
    """Counts of a split, which are known once all its rows have been made.

    Attributes:
        counts: the task's own tables, such as rows by size, and single numbers.
        dropped: rows that were left out, by reason.
        data_sources: rows by data source.
        repeated_prompts: records that repeat the prompt of another one; counted in the training split only.
        most_images: the largest number of images in one row.
    """

    counts: Mapping[str, Mapping[str, int] | int] = field(default_factory=dict)
    dropped: Mapping[str, int] = field(default_factory=dict)
    data_sources: Mapping[str, int] = field(default_factory=dict)
    repeated_prompts: int = 0
    most_images: int = 0


@dataclass(frozen=True, kw_only=True)
class Manifest(SplitCounts, Origin):
    """All that is written beside a parquet file; `bytes` and `sha256` are the file's, `columns` name -> Arrow type."""

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
