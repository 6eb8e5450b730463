"""Finished answers on disk: a file per model, data, sampling and generator, a line per question, so a run resumes."""

import fcntl
import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

from recipes import paths
from recipes.errors import RecipeError
from recipes.evaluation.questions import Question
from recipes.files import json_sha256, sha256, write_whole, writing
from recipes.responses.measures import Group, Response, Sampling


def evaluations() -> Path:
    """`artifacts/evaluations`: reports by task, and the cache."""
    return paths.artifacts() / "evaluations"


class ResponseFile:
    """A JSONL file of groups, of which only the lines' offsets are kept in memory.

    A question counts as unanswered where its line cannot be parsed, or is the last one and has no newline yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offsets: dict[int, int] = {}
        if path.exists():
            self._index()

    def _index(self) -> int:
        """Find the groups; return where the last whole line ends."""
        self._offsets.clear()
        offset = 0
        with self.path.open("rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    break
                with suppress(ValueError, KeyError, TypeError):
                    record = json.loads(line)
                    self._offsets[record["row"]] = offset
                offset += len(line)
        return offset

    @contextmanager
    def for_writing(self) -> Iterator[None]:
        """Lock the file for writing, read what others wrote before, and cut off the half line that a killed run leaves.

        Raises RecipeError where another evaluation is writing, or nothing can be written.
        """
        with writing(self.path, option="ARTIFACTS_DIR"):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = self.path.open("ab")
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                what = "another evaluation is generating the same responses"
                raise RecipeError(what, where=str(self.path), fix="wait until it ends") from error
            file.truncate(self._index())
            yield

    def missing(self, questions: Iterable[Question]) -> list[Question]:
        """The questions that have no group in the file."""
        return [question for question in questions if question.row not in self._offsets]

    def append(self, group: Group) -> None:
        """Write one group, within `for_writing`; it is on disk, whole, when this returns."""
        line = {"row": group.row, "responses": [asdict(response) for response in group.responses]}
        text = json.dumps(line, ensure_ascii=False, allow_nan=False)
        with writing(self.path, option="ARTIFACTS_DIR"), self.path.open("ab") as file:
            self._offsets[group.row] = file.seek(0, os.SEEK_END)
            file.write(f"{text}\n".encode())

    def read(self, row: int) -> Group:
        """The group of one row; KeyError where it is missing, RecipeError where another evaluation has deleted it."""
        record = {}
        with self.path.open("rb") as file, suppress(ValueError):
            file.seek(self._offsets[row])
            record = json.loads(file.readline())
        if not isinstance(record, dict) or record.get("row") != row:
            what = f"the responses to row {row} are gone: another evaluation began anew"
            raise RecipeError(what, where=str(self.path), fix="run the same command again")
        return Group(row, tuple(Response(**response) for response in record["responses"]))

    def forget(self) -> None:
        """Delete every response. Raises RecipeError where another evaluation is writing."""
        with self.for_writing():
            os.truncate(self.path, 0)
            self._index()


def responses_for(model_hash: str, data_hash: str, sampling: Sampling, generator: str) -> ResponseFile:
    """The file of the responses of this model to this data under this sampling.

    `generator` (vLLM, or a server, with what changes its answers) is part of the key: two generators need not draw
    the same answers from one seed. The number of rows is not part of it: a larger `--limit` adds to the file.
    """
    key = {"model": model_hash, "data": data_hash, "sampling": asdict(sampling), "generator": generator}
    return ResponseFile(evaluations() / "cache" / f"{json_sha256(key)[:16]}.jsonl")


def hash_file(path: Path) -> str:
    """SHA-256 of a file; cached by path, size and modification time, since weights are many gigabytes."""
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
