"""Files that are written whole or not at all, their digests, growing files, and the lock of a run's folder."""

import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from recipes.errors import RecipeError

FULL = "make room, or set ARTIFACTS_DIR to a larger disk"
LITTLE = 1 << 20
"""Bytes; a disk with less free is full."""


@contextmanager
def writing(path: Path, draft: Path | None = None, option: str = "") -> Iterator[None]:
    """Raise RecipeError where a path, which `option` decides, cannot be written; remove the draft in any case."""
    try:
        yield
    except OSError as error:
        other = "make that a folder that you may write to" + f", or set {option} to another" * bool(option)
        fix = FULL if error.errno in (errno.ENOSPC, errno.EDQUOT) else other
        raise RecipeError(f"{path} cannot be written: {error}", where=str(path.parent), fix=fix) from error
    finally:
        if draft is not None:
            draft.unlink(missing_ok=True)


def write_whole(path: Path, text: str, option: str = "") -> None:
    """Write a text file so that a reader sees the old one or the whole new one. Raises RecipeError where it cannot."""
    with writing(path, option=option):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(".tmp", dir=path.parent)
    with writing(path, Path(name), option):
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(name, 0o644)  # a temporary file is private to its owner
        os.replace(name, path)


def full_disk(*folders: Path) -> str:
    """`the disk of <folder> is full`, of the first folder of which that holds; else an empty text."""
    for folder in folders:
        nearest = next(path for path in (folder, *folder.parents) if path.exists())
        if shutil.disk_usage(nearest).free < LITTLE:
            return f"the disk of {folder} is full"
    return ""


class Tail:
    """The complete lines of a growing file from an offset on, without their line ends."""

    def __init__(self, path: Path, ends: bytes = b"\n", offset: int = 0) -> None:
        self._path, self._ends, self._offset, self._rest = path, re.compile(b"[" + ends + b"]"), offset, b""

    def read(self) -> list[bytes]:
        """Lines that were completed since the last call; none while there is no file."""
        if not self._path.is_file():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        self._offset += len(data)
        *lines, self._rest = self._ends.split(self._rest + data)
        return lines


def write_json(path: Path, values: Any) -> None:
    """Write JSON, its keys sorted, as `write_whole` writes text."""
    write_whole(path, json.dumps(values, indent=2, sort_keys=True) + "\n")


def sha256(path: Path) -> str:
    """Hex SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def json_sha256(values: Any) -> str:
    """Hex SHA-256 of values as JSON, their keys sorted; what JSON does not know counts as its text."""
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()


@contextmanager
def whole_folder(target: Path, option: str = "") -> Iterator[Path]:
    """A new folder to write into; it replaces `target` when the block succeeds, and is deleted when it raises."""
    with writing(target, option=option):
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        yield draft
        draft.chmod(0o755)
        # The old folder is moved aside first and deleted last, so that one of the two is always whole.
        old = Path(tempfile.mkdtemp(prefix=f".{target.name}.old.", dir=target.parent))
        if target.exists():
            target.rename(old / target.name)
        draft.rename(target)
        shutil.rmtree(old)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


@contextmanager
def run_lock(path: Path, experiment: str, variable: str = "EXPERIMENT_NAME") -> Iterator[None]:
    """Hold the lock file of a run's folder, or of its checkpoints' folder, until the block ends.

    The file has this process's id in it. Where a file system has no locks, nothing is held. Raises RecipeError, with
    `variable` as what chooses another folder, where another process has locked the file.
    """
    with writing(path, option="ARTIFACTS_DIR"):
        path.parent.mkdir(parents=True, exist_ok=True)
        opened = path.open("a+")
    with opened as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            lock.seek(0)
            what = f"process {lock.read().strip() or '?'} writes into the folder of the run {experiment}"
            fix = f"wait for it, stop it, or choose another {variable}"
            raise RecipeError(what, where=str(path.parent), fix=fix) from error
        except OSError:
            pass
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        try:
            yield
        finally:
            lock.truncate(0)
