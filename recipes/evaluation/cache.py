"""Finished answers on disk: one file per model, data and sampling, one line per question, so that a run resumes."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from recipes import paths
from recipes.evaluation.questions import Question
from recipes.evaluation.sampling import Group, Response, Sampling
from recipes.files import sha256, write_whole


def evaluations() -> Path:
    """`artifacts/evaluations`: reports by task, and the cache."""
    return paths.artifacts() / "evaluations"


class ResponseFile:
    """A JSONL file of groups; memory does not grow with the responses' text.

    A line that is no group, such as the half of one that a killed run leaves at the end, counts as missing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offsets: dict[int, int] = {}
        if not path.exists():
            return
        offset, line = 0, b"\n"
        with path.open("rb") as file:
            for line in file:
                with suppress(ValueError):
                    self._offsets[json.loads(line)["row"]] = offset
                offset += len(line)
        if not line.endswith(b"\n"):
            os.truncate(path, offset - len(line))

    def missing(self, questions: Iterable[Question]) -> list[Question]:
        """The questions that it has no group of."""
        return [question for question in questions if question.row not in self._offsets]

    def append(self, group: Group) -> None:
        """Write one group; it is on disk, whole, when this returns."""
        line = {"row": group.row, "responses": [asdict(response) for response in group.responses]}
        text = json.dumps(line, ensure_ascii=False, allow_nan=False)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # another evaluation may write answers of the same model
            self._offsets[group.row] = file.seek(0, os.SEEK_END)
            file.write(f"{text}\n".encode())

    def read(self, row: int) -> Group:
        """The group of one row; KeyError where it is missing."""
        with self.path.open("rb") as file:
            file.seek(self._offsets[row])
            record = json.loads(file.readline())
        return Group(record["row"], tuple(Response(**response) for response in record["responses"]))

    def forget(self) -> None:
        """Delete every response."""
        self.path.unlink(missing_ok=True)
        self._offsets.clear()


def responses_for(model_hash: str, data_hash: str, sampling: Sampling, generator: str) -> ResponseFile:
    """The file of the responses of this model to this data under this sampling.

    `generator` (vLLM, or a server, with what changes its answers) is part of the key: two generators need not draw
    the same answers from one seed. How many rows are asked is not: a larger `--limit` adds to the file.
    """
    key = {"model": model_hash, "data": data_hash, "sampling": asdict(sampling), "generator": generator}
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
    return ResponseFile(evaluations() / "cache" / f"{digest[:16]}.jsonl")


def hash_file(path: Path) -> str:
    """SHA-256 of a file; remembered by path, size and time of change, since weights are many gigabytes."""
    stat = path.stat()
    mark = f"{path.resolve()}|{stat.st_size}|{stat.st_mtime_ns}"
    memory = evaluations() / "cache" / "hashes.json"
    known = json.loads(memory.read_text()) if memory.exists() else {}
    if mark not in known:
        known[mark] = sha256(path)
        write_whole(memory, json.dumps(known, indent=0))
    return known[mark]


def hash_model(folder: Path) -> str:
    """SHA-256 over the names and contents of all files that lie in a model's folder (not in folders below it)."""
    files = sorted(path for path in folder.iterdir() if path.is_file())
    listing = "".join(f"{path.name} {hash_file(path)}\n" for path in files)
    return hashlib.sha256(listing.encode()).hexdigest()
