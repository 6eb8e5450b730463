"""Run a command with its output in a log, and time its first metrics."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Watched:
    """Measurements of one command."""

    exit_code: int = -1
    first_metrics_s: float | None = None  # from the command to the first line of metrics


def watch(
    command: Sequence[str], *, environment: Mapping[str, str], metrics: Path, log: Path, interval_s: float = 0.2
) -> Watched:
    """Run the command to its end. SIGINT and SIGTERM are passed on to it.

    Args:
        command: argument vector.
        environment: variables added to the inherited ones.
        metrics: file to which the run appends a JSON object a line, `{"step": n, "data": {...}}`.
        log: file for the command's output.
        interval_s: seconds between two looks at `metrics`.
    """
    seen, begin = Watched(), time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            list(command),
            env={**os.environ, **environment},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C in a terminal reaches it once, passed on from here
        )
        with _signals_passed_on(process):
            while process.poll() is None:
                if seen.first_metrics_s is None and metrics.is_file() and metrics.stat().st_size:
                    seen.first_metrics_s = time.monotonic() - begin
                time.sleep(interval_s)
    seen.exit_code = process.returncode
    return seen


@contextmanager
def _signals_passed_on(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """SIGINT and SIGTERM end the command and not this process, which reports what was measured by then."""
    before = {
        number: signal.signal(number, lambda got, _: process.send_signal(got))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def last_lines(log: Path, count: int = 20) -> str:
    """The end of a command's output."""
    with log.open(encoding="utf-8", errors="replace") as lines:
        return "".join(deque(lines, maxlen=count)).rstrip()
