"""Run a command and watch it from outside: wall time, memory and CPU time of all its processes, and its metrics."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

_GONE = (psutil.NoSuchProcess, psutil.ZombieProcess, psutil.AccessDenied)


@dataclass
class Watched:
    """Measurements of one command."""

    exit_code: int = -1
    wall_s: float = 0.0  # from its start to its end
    cpu_s: float = 0.0  # user and system time of all its processes that were waited for
    peak_pss_bytes: int = 0
    """Largest sum of the processes' proportional set sizes (PSS) at one moment. A page of memory that n processes share
    counts 1/n for each of them."""
    peak_processes: int = 0  # most processes at one moment
    first_metrics_s: float | None = None  # until the first line of metrics, the validation at step 0
    step_s: list[float] = field(default_factory=list)
    """Seconds of each training step by the trainer's clock, without validation and checkpoint."""


def watch(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    metrics: Path,
    log: Path,
    interval_s: float = 0.5,
    memory: bool = True,
) -> Watched:
    """Run the command and wait for its end. SIGINT and SIGTERM are passed on to it.

    Args:
        command: argument vector.
        environment: variables added to the inherited ones.
        metrics: file to which the run appends a JSON object a line, `{"step": n, "data": {...}}`.
        log: file for the command's output.
        interval_s: seconds between two samples.
        memory: count the processes and their memory too. The kernel adds up each process's pages for it: five times a
            second for twenty processes, that takes a fifth of a core.
    """
    seen = Watched()
    begin, cpu_before = time.monotonic(), _cpu_of_children()
    with log.open("wb") as output:
        process = subprocess.Popen(
            list(command),
            env={**os.environ, **environment},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C in a terminal reaches it once, passed on from here
        )
        known = {process.pid: psutil.Process(process.pid)}
        with _signals_passed_on(process):
            while process.poll() is None:
                sizes = _memory(known) if memory else []
                seen.peak_pss_bytes = max(seen.peak_pss_bytes, sum(sizes))
                seen.peak_processes = max(seen.peak_processes, len(sizes))
                if seen.first_metrics_s is None and metrics.is_file() and metrics.stat().st_size:
                    seen.first_metrics_s = time.monotonic() - begin
                time.sleep(interval_s)
    seen.wall_s = time.monotonic() - begin
    seen.exit_code = process.returncode
    seen.cpu_s = _cpu_of_children() - cpu_before
    seen.step_s = step_seconds(metrics)
    return seen


def _memory(known: dict[int, psutil.Process]) -> list[int]:
    """Return the PSS of each living process in bytes.

    Descendants are added to `known`, so that a process is still counted after its parent's end.
    """
    sizes = []
    for process in list(known.values()):
        try:
            known.update((child.pid, child) for child in process.children(recursive=True))
        except _GONE:
            continue
    for process in known.values():
        try:
            sizes.append(process.memory_full_info().pss)
        except _GONE:
            continue
    return sizes


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


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


def step_seconds(metrics: Path) -> list[float]:
    """`timing_s/step` of each training step, less what it spent on its checkpoint."""
    lines = metrics.read_text(encoding="utf-8").splitlines() if metrics.is_file() else []
    steps = [json.loads(line)["data"] for line in lines]
    return [
        float(data["timing_s/step"]) - float(data.get("timing_s/save_checkpoint", 0.0))
        for data in steps
        if data.get("timing_s/step") is not None
    ]
