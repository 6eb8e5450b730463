"""The questions of an evaluation: rows of a task's parquet file."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recipes.errors import RecipeError

COLUMNS = ("prompt", "reward_model", "data_source")


@dataclass(frozen=True)
class Question:
    """One row: `prompt` is a list of chat messages, `ground_truth` what the reward compares with."""

    row: int
    prompt: list[dict[str, str]]
    ground_truth: str
    data_source: str
    extra_info: dict[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The prompt as a person reads it; a lone user message stands without its role."""
        if len(self.prompt) == 1:
            return self.prompt[0]["content"]
        return "\n\n".join(f"[{message['role']}]\n{message['content']}" for message in self.prompt)


def load_questions(path: Path, *, limit: int | None = None, sample_seed: int | None = None) -> list[Question]:
    """The first `limit` rows of a parquet file, or with `sample_seed` that many drawn at random, in the file's order.

    Raises:
        RecipeError: the file is missing, is not such a parquet file, is empty, or has a row without a gold answer.
    """
    total = _row_count(path)
    if total == 0:
        raise RecipeError("the data set is empty", where=str(path), fix="prepare the data again")
    if limit is not None and limit < 1:
        raise RecipeError(f"--limit {limit} leaves nothing to ask", where="--limit", fix="use 1 or more")
    count = min(limit or total, total)
    wanted = range(count) if sample_seed is None else sorted(random.Random(sample_seed).sample(range(total), count))
    return list(_questions(path, set(wanted), last=max(wanted)))


def _row_count(path: Path) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not path.is_file():
        raise RecipeError(
            f"there is no data file {path}", where="--data_path", fix="prepare the data, or name the file"
        )
    try:
        file = pq.ParquetFile(path)
    except pa.ArrowInvalid as error:
        raise RecipeError(f"{path} is not a parquet file", where="--data_path", fix=str(error)) from error
    missing = [name for name in COLUMNS if name not in file.schema_arrow.names]
    if missing:
        gold = "reward_model" in missing
        raise RecipeError(
            f"{path} has no column {missing[0]}" + (", which holds the gold answers" if gold else ""),
            where="--data_path",
            fix="use a file that a data_prep script wrote",
        )
    return file.metadata.num_rows


def _questions(path: Path, wanted: set[int], *, last: int) -> Iterator[Question]:
    import pyarrow.parquet as pq

    file = pq.ParquetFile(path)
    columns = [name for name in (*COLUMNS, "extra_info", "images") if name in file.schema_arrow.names]
    row = 0
    for batch in file.iter_batches(batch_size=1024, columns=columns):
        for record in batch.to_pylist():
            if row in wanted:
                yield _question(path, row, record)
            row += 1
        if row > last:
            return


def _question(path: Path, row: int, record: dict[str, Any]) -> Question:
    where = f"{path}, row {row}"
    gold = (record["reward_model"] or {}).get("ground_truth")
    if gold is None or gold == "":
        raise RecipeError("the row has no gold answer", where=where, fix="prepare the data again")
    if record.get("images"):
        raise RecipeError("the row has images, and this evaluation asks in text only", where=where)
    if not record["prompt"]:
        raise RecipeError("the row has no prompt", where=where, fix="prepare the data again")
    messages = [{"role": message["role"], "content": message["content"]} for message in record["prompt"]]
    return Question(row, messages, str(gold), record["data_source"], record.get("extra_info") or {})
