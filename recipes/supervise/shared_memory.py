"""Shared memory that a run left behind when it was stopped: weights on their way to vLLM, semaphores, tensors.

A file in `/dev/shm` outlives its processes and takes memory until the machine is restarted.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

FOLDER = Path("/dev/shm")
NAMES = ("verl_weights_*",)
"""What verl calls its files. Those of Python's multiprocessing (`psm_*`) may be another container's, whose processes
are not to be seen from here; they are small and stay."""


@contextmanager
def cleared(folder: Path = FOLDER) -> Iterator[None]:
    """Afterwards, files that came meanwhile and that no living process has mapped or open are removed."""
    before = _ours(folder)
    try:
        yield
    finally:
        came = _ours(folder) - before
        for path in came - _in_use(came) if came else ():
            path.unlink(missing_ok=True)


def _ours(folder: Path) -> set[Path]:
    found = set()
    for path in (path for name in NAMES for path in folder.glob(name)):
        try:
            if path.stat().st_uid == os.getuid():
                found.add(path)
        except FileNotFoundError:
            continue
    return found


def _in_use(paths: set[Path]) -> set[Path]:
    wanted = {str(path): path for path in paths}
    used: set[Path] = set()
    for process in Path("/proc").glob("[0-9]*"):
        text = _mapped(process) + "\n".join(_opened(process))
        used |= {path for name, path in wanted.items() if name in text}
    return used


def _mapped(process: Path) -> str:
    try:
        return (process / "maps").read_text(errors="replace")
    except OSError:
        return ""


def _opened(process: Path) -> Iterator[str]:
    try:
        for entry in (process / "fd").iterdir():
            with suppress(FileNotFoundError):  # the descriptor of this very listing
                yield os.readlink(entry)
    except OSError:
        return
