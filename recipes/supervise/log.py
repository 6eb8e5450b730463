"""The trainer's log, read while it grows: clean lines, and which phase of the start they tell of."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_SPEAKER = re.compile(r"\((?:[\w.:]+ )?pid=\d+(?:, ip=[\d.]+)?\) ?")
_VLLM = re.compile(r"(?:DEBUG|INFO|WARNING|ERROR) \d\d-\d\d \d\d:\d\d:\d\d \[[^\]]+\] ?")

# What the trainer prints when a phase begins -> what a user is told. In the order of a start.
PHASES: tuple[tuple[str, str], ...] = (
    ("Started a local Ray instance", "Ray is up; the trainer's driver loads"),
    ("All configuration checks passed", "configuration accepted"),
    ("train and validate dataloader initialized", "data loaded; starting the policy's workers"),
    ("Before FSDP", "model read; sharding it"),
    ("actor and ref model engine initialized", "policy ready; starting vLLM (the longest part)"),
    ("checkpoint engine manager initialized", "vLLM is up; handing the weights over"),
    ("Creating file logger", "ready: generating"),
)


class Line(NamedTuple):
    """One line: the process that wrote it (empty for the trainer itself) and its text without decoration."""

    speaker: str
    text: str


def clean(raw: str) -> Line:
    """Take off colours, Ray's `(Name pid=1)`, also doubled, and vLLM's `ERROR 01-02 03:04:05 [file.py:1]`."""
    text = _ANSI.sub("", raw)
    speaker = ""
    while match := _SPEAKER.match(text):
        speaker += match.group().strip()
        text = text[match.end() :]
    if match := _VLLM.match(text):
        speaker += "vllm"
        text = text[match.end() :]
    return Line(speaker, text.rstrip())


class LogReader:
    """Complete lines of a growing file, from an offset on; a progress bar's carriage returns end lines too."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        self._path, self._offset, self._rest = path, offset, b""

    def read(self) -> list[Line]:
        """Lines that were completed since the last call."""
        if not self._path.is_file():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        self._offset += len(data)
        *done, self._rest = re.split(rb"[\r\n]", self._rest + data)
        return [clean(raw.decode("utf-8", "replace")) for raw in done if raw.strip()]


def phase_of(line: Line) -> str | None:
    """What this line says about the start, in words; None for the flood."""
    return next((told for printed, told in PHASES if printed in line.text), None)
