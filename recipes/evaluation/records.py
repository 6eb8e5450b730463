"""Responses on disk: one JSON line per question, appended as it is finished, read back in any order."""

from __future__ import annotations

import fcntl
import json
import math
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from recipes.errors import RecipeError


@dataclass(frozen=True, slots=True)
class Response:
    """One answer of a model.

    Attributes:
        text: the answer without special tokens.
        tokens: its length in tokens, or None where the generator does not tell.
        finish: why it ended: "stop", "length" (cut off at the limit), or the generator's own word.
        logprob: sum over its tokens of the log-probability (nats) under the distribution that was sampled, or None.
    """

    text: str
    tokens: int | None
    finish: str
    logprob: float | None

    @property
    def truncated(self) -> bool:
        """Whether the limit on tokens cut the answer off."""
        return self.finish == "length"


@dataclass(frozen=True, slots=True)
class Group:
    """All responses to one question; `row` is the question's row in its data file."""

    row: int
    responses: tuple[Response, ...]


def clean_text(text: str) -> str:
    """`text` with lone surrogates, which UTF-8 cannot hold, written as escapes."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def check_group(group: Group, n: int) -> None:
    """Raise a `RecipeError` unless the group has `n` responses with finite log-probabilities."""
    if len(group.responses) != n:
        raise RecipeError(f"row {group.row} got {len(group.responses)} responses instead of {n}", where="generation")
    for sample, response in enumerate(group.responses):
        if response.logprob is not None and not math.isfinite(response.logprob):
            raise RecipeError(
                f"the log-probability of response {sample} to row {group.row} is {response.logprob}",
                where="generation",
                fix="the model's weights or its precision are broken: look for NaN in the weights, or try float32",
            )


def _as_line(group: Group) -> str:
    fields = ("text", "tokens", "finish", "logprob")
    responses = [{name: getattr(response, name) for name in fields} for response in group.responses]
    return json.dumps({"row": group.row, "responses": responses}, ensure_ascii=False, allow_nan=False) + "\n"


class ResponseFile:
    """An append-only file of groups with an index from row to offset; memory does not grow with the responses' text.

    A run that was killed while writing leaves half a line at the end, which is cut off when the file is opened for
    appending, so that the run resumes. Only one process may append at a time.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offsets: dict[int, int] = {}
        self._writer: IO[bytes] | None = None
        self._reader: IO[bytes] | None = None
        if path.exists():
            self._index()

    def __contains__(self, row: int) -> bool:
        return row in self._offsets

    def __len__(self) -> int:
        return len(self._offsets)

    def __enter__(self) -> ResponseFile:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def open_for_append(self) -> None:
        """Take the lock, index what another process added meanwhile, and cut off half a line."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._writer = self.path.open("ab")
        try:
            fcntl.flock(self._writer, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._writer.close()
            self._writer = None
            raise RecipeError(
                "another evaluation is generating the same responses", where=str(self.path), fix="wait until it ends"
            ) from error
        self._writer.truncate(self._index())

    def append(self, group: Group) -> None:
        """Write one group; it is on disk, whole, when this returns."""
        if self._writer is None:
            raise ValueError("append needs open_for_append first")
        offset = self._writer.seek(0, 2)
        self._writer.write(_as_line(group).encode())
        self._writer.flush()
        self._offsets[group.row] = offset

    def read(self, row: int) -> Group:
        """The group of one row; KeyError where it is missing."""
        if self._reader is None:
            self._reader = self.path.open("rb")
        self._reader.seek(self._offsets[row])
        record = json.loads(self._reader.readline())
        return Group(record["row"], tuple(Response(**response) for response in record["responses"]))

    def close(self) -> None:
        """Release the files and the lock."""
        for file in (self._writer, self._reader):
            if file is not None:
                file.close()
        self._writer = self._reader = None

    def _index(self) -> int:
        """Fill the offsets; return where the last whole line ends."""
        self._offsets.clear()
        offset = 0
        with self.path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    break
                self._offsets[self._row_of(line, number)] = offset
                offset += len(line)
        return offset

    def _row_of(self, line: bytes, number: int) -> int:
        # Every line starts with {"row": N, so the text need not be parsed to build the index.
        head = line[: line.find(b",")] + b"}"
        with suppress(ValueError, KeyError, TypeError):
            return int(json.loads(head)["row"])
        raise RecipeError(
            f"line {number} is not a group of responses", where=str(self.path), fix="delete the file to generate again"
        )


class JsonLines:
    """A JSONL file that is written line by line."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path, self.count = path, 0
        self._file = path.open("w", encoding="utf-8")

    def write(self, record: dict[str, Any]) -> None:
        """Append one record; NaN and infinity are refused, since JSON has neither."""
        self._file.write(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n")
        self.count += 1

    def close(self) -> None:
        """Finish the file."""
        self._file.close()
