"""The processes of one run, and only those: found by descent and by a mark in their environment.

Ray's daemons leave the trainer's process group and, when it dies, its family; so neither alone would find them all.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil

MARK = "GRPO_RECIPES_RUN"
"""Environment variable whose value is one run's own."""

_GONE = (psutil.NoSuchProcess, psutil.ZombieProcess, psutil.AccessDenied)


class ProcessTree:
    """Everything that one run started, remembered from refresh to refresh so that orphans stay known.

    Args:
        root: the trainer's process id.
        mark: the value of `MARK` in its environment.
    """

    def __init__(self, root: int, mark: str) -> None:
        self._mark = f"{MARK}={mark}".encode()
        self._known: dict[tuple[int, float], psutil.Process] = {}
        self._strangers: set[tuple[int, float]] = set()
        self._root = root

    def refresh(self) -> list[psutil.Process]:
        """The run's living processes, zombies left out."""
        ours = {pid for pid, _ in self._known} | {self._root}
        unknown: list[tuple[tuple[int, float], int, psutil.Process]] = []
        for process in psutil.process_iter(["ppid", "create_time"]):
            identity = (process.pid, process.info["create_time"] or 0.0)
            if identity not in self._known:
                unknown.append((identity, process.info["ppid"] or 0, process))
        for identity, parent, process in sorted(unknown, key=lambda entry: entry[0][1]):
            by_descent = process.pid == self._root or parent in ours
            if by_descent or (identity not in self._strangers and self._is_marked(process.pid)):
                self._known[identity] = process
                ours.add(process.pid)
            else:
                self._strangers.add(identity)
        self._known = {identity: process for identity, process in self._known.items() if _lives(process)}
        return list(self._known.values())

    def cpu_seconds(self) -> float:
        """User and system time of the living processes together."""
        total = 0.0
        for process in self._known.values():
            try:
                times = process.cpu_times()
            except _GONE:
                continue
            total += times.user + times.system
        return total

    def stop(self, polite_s: float, firm_s: float, hurry: Callable[[], bool] = lambda: False) -> list[int]:
        """End the run: first the trainer alone, so that it can close Ray; then everyone; then without asking.

        Args:
            polite_s: seconds the trainer gets to end by itself after SIGTERM.
            firm_s: seconds the others get after SIGTERM before SIGKILL.
            hurry: asked while waiting; true cuts every wait short.

        Returns:
            The processes that are left even so (none, unless they belong to another user).
        """
        root = [process for process in self.refresh() if process.pid == self._root]
        _send(root, signal.SIGTERM)
        self._wait(polite_s, hurry, only_root=True)
        _send(self.refresh(), signal.SIGTERM)
        self._wait(firm_s, hurry)
        deadline = time.monotonic() + 10
        while (left := self.refresh()) and time.monotonic() < deadline:
            _send(left, signal.SIGKILL)
            time.sleep(0.1)
        return [process.pid for process in left]

    def _wait(self, seconds: float, hurry: Callable[[], bool], only_root: bool = False) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not hurry():
            left = self.refresh()
            if not left or (only_root and all(process.pid != self._root for process in left)):
                return
            time.sleep(0.1)

    def _is_marked(self, pid: int) -> bool:
        try:
            return self._mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            return False


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except _GONE:
        return False


def _send(processes: list[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        if process.pid == os.getpid():
            continue
        try:
            process.send_signal(number)
        except _GONE:
            continue
