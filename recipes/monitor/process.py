"""The trainer's processes: start them, know them all, end them all, and remove the shared memory that they leave."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

_PR_SET_PDEATHSIG = 1


class Child:
    """A running trainer.

    Args:
        command: argument vector.
        environment: the child's whole environment.
        log: file that its output is appended to.
        folder: working folder.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path, folder: Path) -> None:
        mark = uuid.uuid4().hex
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                list(command),
                env={**environment, MARK: mark, "PYTHONUNBUFFERED": "1"},
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_end_with_parent if sys.platform == "linux" else None,
            )
        self.tree = ProcessTree(self._process.pid, mark)
        self.tree.refresh()

    @property
    def pid(self) -> int:
        return self._process.pid

    def poll(self) -> int | None:
        """Exit code, negative for a signal; None while the trainer runs."""
        return self._process.poll()

    def stop(
        self, terminate_s: float = 15.0, kill_s: float = 5.0, abort: Callable[[], bool] = lambda: False
    ) -> list[int]:
        """End the trainer and every process of the run; the ids of those that stay even so. See `ProcessTree.stop`."""
        left = self.tree.stop(terminate_s, kill_s, abort)
        self._process.wait()
        return left


def _end_with_parent() -> None:
    """Runs in the child before the trainer: SIGTERM it when the launcher dies, however that happens."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() == 1:
        os._exit(1)


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
        self._foreign: set[tuple[int, float]] = set()
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
            if by_descent or (identity not in self._foreign and self._is_marked(process.pid)):
                self._known[identity] = process
                ours.add(process.pid)
            else:
                self._foreign.add(identity)
        self._known = {identity: process for identity, process in self._known.items() if _is_alive(process)}
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

    def stop(self, terminate_s: float, kill_s: float, abort: Callable[[], bool] = lambda: False) -> list[int]:
        """End the run: first the trainer alone, so that it can close Ray; then everyone; then without asking.

        Args:
            terminate_s: seconds that the trainer has to end by itself after SIGTERM.
            kill_s: seconds that the other processes have after SIGTERM before SIGKILL.
            abort: called while waiting; true ends every wait.

        Returns:
            The processes that are left even so (none, unless they belong to another user).
        """
        root = [process for process in self.refresh() if process.pid == self._root]
        _send(root, signal.SIGTERM)
        self._wait(terminate_s, abort, only_root=True)
        _send(self.refresh(), signal.SIGTERM)
        self._wait(kill_s, abort)
        deadline = time.monotonic() + 10
        while (left := self.refresh()) and time.monotonic() < deadline:
            _send(left, signal.SIGKILL)
            time.sleep(0.1)
        return [process.pid for process in left]

    def _wait(self, seconds: float, abort: Callable[[], bool], only_root: bool = False) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not abort():
            left = self.refresh()
            if not left or (only_root and all(process.pid != self._root for process in left)):
                return
            time.sleep(0.1)

    def _is_marked(self, pid: int) -> bool:
        try:
            return self._mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            return False


def _is_alive(process: psutil.Process) -> bool:
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


SHARED_MEMORY = Path("/dev/shm")
NAMES = ("verl_weights_*",)
"""verl's names. Files of Python's multiprocessing (`psm_*`) are small and stay: they may belong to a process of another
container, which cannot be seen from here."""


@contextmanager
def shared_memory_cleared(folder: Path = SHARED_MEMORY) -> Iterator[None]:
    """On exit, remove the files that were made meanwhile and that no living process has mapped or open."""
    before = _own_files(folder)
    try:
        yield
    finally:
        new = _own_files(folder) - before
        for path in new - _in_use(new) if new else ():
            path.unlink(missing_ok=True)


def _own_files(folder: Path) -> set[Path]:
    files = set()
    for path in (path for name in NAMES for path in folder.glob(name)):
        try:
            if path.stat().st_uid == os.getuid():
                files.add(path)
        except FileNotFoundError:
            continue
    return files


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
