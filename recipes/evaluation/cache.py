"""Responses on disk: one JSON line per question, found again by model, data and sampling, so that a run resumes."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO

from recipes import paths
from recipes.errors import RecipeError
from recipes.evaluation.questions import Question
from recipes.evaluation.sampling import Group, Response, Sampler, Sampling
from recipes.files import sha256, write_whole

FORMAT = 2
ROW = re.compile(rb'\{"row": (\d+),')
"""Begins the line of a group, whose texts need not be parsed to find it."""


def evaluations() -> Path:
    """`artifacts/evaluations`: reports by task, and the cache."""
    return paths.artifacts() / "evaluations"


class ResponseFile:
    """A JSONL file of groups; memory does not grow with the responses' text.

    The first line is the cache key (model, data, sampling, generator). A run that was killed leaves half a line at the
    end, which is cut off before more is appended. Only one process may append at a time.
    """

    def __init__(self, path: Path, key: str = "") -> None:
        self.path, self._key = path, key
        self._offsets: dict[int, int] = {}
        self._file: IO[bytes] | None = None
        if path.exists():
            self._index()

    def __contains__(self, row: int) -> bool:
        return row in self._offsets

    def open_for_append(self) -> None:
        """Take the lock, index what another process added meanwhile, and cut off half a line."""
        self.close()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("a+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.close()
            raise RecipeError(
                "another evaluation is generating the same responses", where=str(self.path), fix="wait until it ends"
            ) from error
        end = self._index()
        self._file.truncate(end)
        if not end:
            self._file.write(f"{self._key}\n".encode())

    def append(self, group: Group) -> None:
        """Write one group, after `open_for_append`; it is on disk, whole, when this returns."""
        if self._file is None:
            raise ValueError("open_for_append comes before append")
        self._offsets[group.row] = self._file.seek(0, os.SEEK_END)
        line = {"row": group.row, "responses": [asdict(response) for response in group.responses]}
        self._file.write((json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n").encode())
        self._file.flush()

    def read(self, row: int) -> Group:
        """The group of one row; KeyError where it is missing."""
        self._file = self._file or self.path.open("rb")
        self._file.seek(self._offsets[row])
        record = json.loads(self._file.readline())
        return Group(record["row"], tuple(Response(**response) for response in record["responses"]))

    def close(self) -> None:
        """Release the file and the lock."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def forget(self) -> None:
        """Delete every response."""
        self.close()
        self.path.unlink(missing_ok=True)
        self._offsets.clear()

    def _index(self) -> int:
        """Find the groups; returns where the last whole line ends."""
        self._offsets.clear()
        offset = 0
        with self.path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                row = ROW.match(line)
                if not line.endswith(b"\n"):
                    break
                if row:
                    self._offsets[int(row[1])] = offset
                elif number > 1:
                    raise RecipeError(
                        f"line {number} is not a group of responses",
                        where=str(self.path),
                        fix="delete the file to generate again",
                    )
                offset += len(line)
        return offset


def responses_for(model_hash: str, data_hash: str, sampling: Sampling, generator: str) -> ResponseFile:
    """The file of the responses of this model to this data under this sampling.

    `generator` (vLLM, or "server", with what changes its answers) is part of the key: two generators need not draw
    the same answers from one seed. How many rows are asked is not: a larger `--limit` adds to the file.
    """
    key = {
        "format": FORMAT,
        "model": model_hash,
        "data": data_hash,
        "sampling": asdict(sampling),
        "generator": generator,
    }
    text = json.dumps({"key": key}, sort_keys=True)
    return ResponseFile(evaluations() / "cache" / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.jsonl", text)


def generate_missing(
    file: ResponseFile,
    questions: Sequence[Question],
    sampling: Sampling,
    sampler: Callable[[], Sampler],
    stream: Callable[[Sequence[Question]], Iterable[Question]],
    advance: Callable[[int], None],
) -> int:
    """Generate the groups that `file` lacks; returns how many. `sampler` is called only if there are any.

    Args:
        stream: gives the questions that are missing as the sampler needs them, with their images.
        advance: called with the number of newly ready questions, first with those found in the cache.

    Raises:
        RecipeError: generation failed; what was finished stays in the file, so that the same command resumes.
    """
    missing = [question for question in questions if question.row not in file]
    advance(len(questions) - len(missing))
    if not missing:
        return 0
    file.open_for_append()
    done = 0
    try:
        for group in sampler().generate(stream(missing), sampling):
            group.check(sampling.n)
            file.append(group)
            done += 1
            advance(1)
    except RecipeError as error:
        ready = len(questions) - len(missing) + done
        if not ready:
            raise
        hint = f"{ready} of {len(questions)} questions are kept in {file.path}: the same command goes on from there"
        fix = f"{error.fix}; {hint}" if error.fix else hint
        raise RecipeError(error.what, where=error.where, fix=fix) from error
    if done < len(missing):
        raise RecipeError(f"the generator stopped after {done} of {len(missing)} questions", where=str(file.path))
    return done


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
