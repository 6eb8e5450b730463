"""The trainer as a child process: its own session, its output in a file, and an end that takes everything along."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from recipes.supervise.processes import MARK, ProcessTree

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

    def stop(self, polite_s: float = 15.0, firm_s: float = 5.0, hurry: Callable[[], bool] = lambda: False) -> list[int]:
        """End the trainer and every process of the run; the ids of those that stay even so. See `ProcessTree.stop`."""
        left = self.tree.stop(polite_s, firm_s, hurry)
        self._process.wait()
        return left


def _end_with_parent() -> None:
    """Runs in the child before the trainer: SIGTERM it when the launcher dies, however that happens."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() == 1:
        os._exit(1)
