"""The trainer's processes: start, track and end all of them, and remove the shared memory that they leave."""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import psutil

from recipes.engines.start.forkserver import die_with_parent

MARK = "GRPO_RECIPES_RUN"
"""Environment variable whose value is unique to one `Child` and marks the processes of that child."""

_GONE = (psutil.NoSuchProcess, psutil.ZombieProcess, psutil.AccessDenied)


class Child:
    """A running trainer and every process that it started; `refresh` tracks orphans too."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path, folder: Path) -> None:
        """Start it in a folder, with `MARK` in its environment; its output is appended to a log."""
        self._mark = uuid.uuid4().hex
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                list(command),
                env={**environment, MARK: self._mark, "PYTHONUNBUFFERED": "1"},
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                # The trainer gets SIGTERM when the launcher dies, however that happens.
                preexec_fn=partial(die_with_parent, signal.SIGTERM, os.getpid()) if sys.platform == "linux" else None,
            )
        self.pid = self._process.pid
        self._known: set[psutil.Process] = set()
        self._foreign: set[psutil.Process] = set()
        self.refresh()

    def poll(self) -> int | None:
        """Exit code, negative for a signal; None while the trainer runs."""
        return self._process.poll()

    def refresh(self) -> list[psutil.Process]:
        """The run's living processes, zombies left out."""
        ours = {self.pid, *(process.pid for process in self._known)}
        every = psutil.process_iter(["ppid", "create_time"])
        for process in sorted(every, key=lambda each: each.info["create_time"] or 0):
            if process in self._known or process in self._foreign:
                continue
            if process.pid == self.pid or process.info["ppid"] in ours or self._is_marked(process):
                self._known.add(process)
                ours.add(process.pid)
            else:
                self._foreign.add(process)
        self._known = set(filter(_is_alive, self._known))
        return list(self._known)

    def cpu_seconds(self) -> float:
        """User and system time of the living processes together."""
        total = 0.0
        for process in self._known:
            with suppress(*_GONE):
                total += sum(process.cpu_times()[:2])
        return total

    def stop(self, terminate_s: float = 15.0, abort: Callable[[], bool] = lambda: False) -> None:
        """End the run: SIGTERM the trainer alone, so that it can close Ray; then SIGTERM all; then SIGKILL.

        The trainer has `terminate_s` seconds to end by itself, or until `abort` returns true.
        """
        _send([process for process in self.refresh() if process.pid == self.pid], signal.SIGTERM)
        self._wait(terminate_s, abort, only_root=True)
        _send(self.refresh(), signal.SIGTERM)
        self._wait(5.0, abort)
        deadline = time.monotonic() + 10
        while (left := self.refresh()) and time.monotonic() < deadline:
            _send(left, signal.SIGKILL)
            time.sleep(0.1)
        self._process.wait()

    def _wait(self, seconds: float, abort: Callable[[], bool], only_root: bool = False) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not abort():
            left = self.refresh()
            if not left or (only_root and all(process.pid != self.pid for process in left)):
                return
            time.sleep(0.1)

    def _is_marked(self, process: psutil.Process) -> bool:
        with suppress(*_GONE):
            return bool(process.environ().get(MARK) == self._mark)
        return False


def _is_alive(process: psutil.Process) -> bool:
    with suppress(*_GONE):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def _send(processes: list[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with suppress(*_GONE):
            if process.pid != os.getpid():
                process.send_signal(number)


SHARED_MEMORY = Path("/dev/shm")
NAMES = "verl_weights_*"
"""Names of verl's shared-memory files. Files of Python's multiprocessing (`psm_*`) are small and are not removed: they
may belong to a process of another container, which cannot be seen from here."""


@contextmanager
def shared_memory_cleared(folder: Path = SHARED_MEMORY) -> Iterator[None]:
    """On exit, remove verl's files that were created within the block and that no living process has mapped."""
    before = set(folder.glob(NAMES))
    try:
        yield
    finally:
        if new := set(folder.glob(NAMES)) - before:
            maps = ""
            for file in Path("/proc").glob("[0-9]*/maps"):
                with suppress(OSError):
                    maps += file.read_text(errors="replace")
            for path in new:
                if str(path) not in maps:
                    with suppress(OSError):  # gone, or another user's
                        path.unlink()
