"""The published data sets that tasks are made from: from the hub, or from local copies of their files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from recipes.errors import RecipeError, first_line
from recipes.files import sha256

if TYPE_CHECKING:
    import pyarrow as pa

SECONDS_TO_ANSWER = 15
"""Time limit of a first request to the hub: without it `datasets` would retry for half a minute before it fails."""


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
        split: name of the split, such as "train".
        revision: branch, tag or commit on the hub. With HF_HUB_OFFLINE=1 the local cache is used as it is.
        name: configuration of the data set, such as "main" of `openai/gsm8k`.
        files: local copies, parquet or JSON lines; None for the hub.

    Raises:
        RecipeError: the hub does not answer, a file cannot be read, or a column is missing.
    """
    import pyarrow as pa
    import pyarrow.json
    import pyarrow.parquet as pq

    if files is None:
        table, commit = _from_hub(repository, split, revision, name)
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


def _from_hub(repository: str, split: str, revision: str, name: str | None) -> tuple[pa.Table, str]:
    """The split, and the commit that it comes from; offline, the revision as it was given."""
    import httpx
    from datasets import load_dataset
    from datasets.exceptions import DatasetsError
    from huggingface_hub import HfApi

    try:
        if os.environ.get("HF_HUB_OFFLINE") != "1":
            revision = HfApi().dataset_info(repository, revision=revision, timeout=SECONDS_TO_ANSWER).sha or revision
        return load_dataset(repository, name, split=split, revision=revision).with_format("arrow")[:], revision
    except (OSError, ValueError, DatasetsError, httpx.HTTPError) as error:
        raise RecipeError(
            f"the hub's data set {repository} cannot be read: {first_line(error)}",
            where=f"{os.environ.get('HF_ENDPOINT', 'https://huggingface.co')}, revision {revision}",
            fix="set HF_ENDPOINT to a mirror, HF_HUB_OFFLINE=1 where it is cached, or use another source (see --help)",
        ) from error
