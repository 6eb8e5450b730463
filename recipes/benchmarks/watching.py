"""Run a command and watch it from outside: wall time, memory and CPU time of all its processes, and its metrics."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

_GONE = (psutil.NoSuchProcess, psutil.ZombieProcess, psutil.AccessDenied)


@dataclass
class Watched:
    """What was seen of one command.

    Attributes:
        exit_code: of the command.
        wall_s: from its start to its end.
        cpu_s: user and system time of all its processes.
        peak_pss_bytes: largest sum, over its processes at one moment, of the proportional set size, in which a page
            that n processes share counts 1/n for each.
        peak_processes: most processes at one moment.
        cpu_by_process_s: CPU seconds by the first words of the command line.
        first_metrics_s: seconds until the first line of metrics, the validation at step 0; None if there was none.
        step_s: seconds of each training step, as the trainer took them, validation and checkpoint apart.
    """

    exit_code: int = -1
    wall_s: float = 0.0
    cpu_s: float = 0.0
    peak_pss_bytes: int = 0
    peak_processes: int = 0
    cpu_by_process_s: dict[str, float] = field(default_factory=dict)
    first_metrics_s: float | None = None
    step_s: list[float] = field(default_factory=list)


class _Tree:
    """A process and its descendants; one that has lost its parent stays known."""

    def __init__(self, root: int) -> None:
        self._known = {root: psutil.Process(root)}
        self._cpu: dict[tuple[int, float], tuple[str, float]] = {}

    def sample(self) -> tuple[int, int]:
        """The processes' PSS together, in bytes, and their number."""
        for process in list(self._known.values()):
            try:
                children = process.children(recursive=True)
            except _GONE:
                continue
            self._known.update((child.pid, child) for child in children)
        total, alive = 0, 0
        for pid, process in list(self._known.items()):
            try:
                with process.oneshot():
                    times, name = process.cpu_times(), _name(process)
                    self._cpu[pid, process.create_time()] = (name, times.user + times.system)
                total += process.memory_full_info().pss
                alive += 1
            except _GONE:
                if not process.is_running():
                    del self._known[pid]
        return total, alive

    def cpu(self) -> Counter[str]:
        """CPU seconds by name, ended processes included as far as they were sampled."""
        seconds: Counter[str] = Counter()
        for name, spent in self._cpu.values():
            seconds[name] += spent
        return seconds


def _name(process: psutil.Process) -> str:
    words = process.cmdline()[:3]
    return " ".join(Path(word).name if word.startswith("/") else word for word in words)[:60]


def watch(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    metrics: Path,
    log: Path,
    interval_s: float = 0.5,
) -> Watched:
    """Run the command to its end. SIGINT and SIGTERM are passed on to it, and it is waited for.

    Args:
        command: argument vector.
        environment: variables besides the inherited ones.
        metrics: file to which the run appends a JSON object a line, `{"step": n, "data": {...}}`.
        log: file for the command's output.
        interval_s: between two samples.
    """
    seen = Watched()
    begin = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            list(command),
            env={**os.environ, **environment},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a terminal's Ctrl-C reaches it once, from here
        )
        tree = _Tree(process.pid)
        with _passed_on(process):
            while process.poll() is None:
                pss, count = tree.sample()
                seen.peak_pss_bytes = max(seen.peak_pss_bytes, pss)
                seen.peak_processes = max(seen.peak_processes, count)
                if seen.first_metrics_s is None and metrics.is_file() and metrics.stat().st_size:
                    seen.first_metrics_s = time.monotonic() - begin
                time.sleep(interval_s)
    seen.wall_s = time.monotonic() - begin
    seen.exit_code = process.returncode
    seen.cpu_by_process_s = dict(tree.cpu().most_common())
    seen.cpu_s = sum(seen.cpu_by_process_s.values())
    seen.step_s = step_seconds(metrics)
    return seen


@contextmanager
def _passed_on(process: subprocess.Popen) -> Iterator[None]:
    """SIGINT and SIGTERM end the command and not this process, which reports what was measured by then."""

    def send(number: int, _frame: object) -> None:
        process.send_signal(number)

    before = {number: signal.signal(number, send) for number in (signal.SIGINT, signal.SIGTERM)}
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
    if not metrics.is_file():
        return []
    entries = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    return [step for entry in entries if (step := _step(entry["data"])) is not None]


def _step(data: dict[str, Any]) -> float | None:
    seconds = data.get("timing_s/step")
    return None if seconds is None else float(seconds) - float(data.get("timing_s/save_checkpoint", 0.0))
