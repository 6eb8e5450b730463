"""Start Python processes by forking one that has already imported torch, Ray, verl and vLLM.

The *server* imports, listens and forks; the *driver*, its first child, runs the trainer; raylet and vLLM start
`spawn.py`, which asks the server for a process instead of starting Python. Forking is safe here because the server has
no Ray connection, no event loop and no thread that holds a lock.
"""

import ctypes
import fcntl
import gc
import importlib.util
import json
import multiprocessing
import os
import runpy
import select
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from recipes.engines.start import spawn

FIXED_VARIABLES = ("RAY_JOB_ID", "RAY_RAYLET_PID", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN")
"""Ray's C++ code reads these once, at import, so a process can be forked only if it needs the same values."""
SIGNALS = (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM)
MOST_DESCRIPTORS = 64
REQUEST_SECONDS = 30.0
"""Longest wait for a request whose sender has connected; the server serves others afterwards."""
_OUT_OF_THE_WAY = 1 << 9
_PR_SET_PDEATHSIG = 1
Job = Callable[[], int]
"""The work of a process; its result is the exit status."""


def preload(modules: Iterable[str]) -> None:
    """Import `modules`, then freeze the garbage collector, so that a collection in a child copies no shared page.

    A module that is not installed, or cannot be imported here, is left to the process that needs it.
    """
    for name in modules:
        if importlib.util.find_spec(name.partition(".")[0]) is None:
            continue
        try:
            importlib.import_module(name)
        except (ImportError, RuntimeError, OSError) as error:  # a refusal of CUDA is a RuntimeError
            print(f"not imported before the fork: {name} ({error})", file=sys.stderr, flush=True)
    gc.freeze()  # without a collection before: it would take a second and free only 24 MB


class ForkServer:
    """Listens from the moment it is made; `serve` answers."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._handlers: dict[int, Any] = {}
        # Only this user may enter the folder and connect. The path of a socket has about a hundred characters at most.
        base = tempfile.gettempdir()
        self._folder = Path(tempfile.mkdtemp(prefix="recipes-", dir=base if len(base) < 80 else "/tmp"))
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(f"{self._folder}/fork.sock")
        self._listener.listen(64)
        self._wake, self._waker = socket.socketpair()
        self._waker.setblocking(False)
        os.environ[spawn.ADDRESS] = f"{self._folder}/fork.sock"
        interpreter = self._folder / "python"
        interpreter.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{spawn.__file__}" "$@"\n', encoding="utf-8")
        interpreter.chmod(0o700)
        os.environ[spawn.INTERPRETER] = os.fspath(interpreter)

    def serve(self, driver: Job) -> Job:
        """Fork the driver, then a process for every request, until the driver ends.

        Returns the job of the current process, the server or a forked child. Raises OSError where not even the driver
        can be forked.
        """
        fixed = {name: os.environ.get(name) for name in FIXED_VARIABLES}
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        for number in SIGNALS:  # the loop below reads their numbers from the wake-up descriptor
            self._handlers[number] = signal.signal(number, lambda *_: None)
        driver_pid = self._fork(signal.SIGTERM)
        if driver_pid == 0:
            return driver
        while True:
            ready, _, _ = select.select([self._listener, self._wake], [], [])
            if self._wake in ready:
                for sent in set(self._wake.recv(4096)) - {signal.SIGCHLD}:
                    os.kill(driver_pid, sent)  # at worst a zombie: it is reaped below
                status = _reap(driver_pid)
                if status is not None:
                    self.close()
                    return lambda: status
            if self._listener in ready:
                job = self._answer(fixed)
                if job is not None:
                    return job

    def _fork(self, when_orphaned: int) -> int:
        """Fork a child with the handlers from before `serve`, which also handle a signal that came during the fork.

        When the server ends the child gets the signal `when_orphaned`.
        """
        sys.stdout.flush()
        sys.stderr.flush()
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            pid = os.fork()
            if pid == 0:
                for number, handler in self._handlers.items():
                    signal.signal(number, handler)
                self._leave()
                die_with_parent(when_orphaned, self._owner)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return pid

    def close(self) -> None:
        """Stop listening; later callers start Python themselves."""
        self._leave()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _leave(self) -> None:
        signal.set_wakeup_fd(-1)  # or Python reports, at each signal, that the closed end cannot be written to
        for end in (self._listener, self._wake, self._waker):
            end.close()

    def _answer(self, fixed: dict[str, str | None]) -> Job | None:
        """Answer one request with the child's process id, or 0; in the child, return what it has to run."""
        connection, _ = self._listener.accept()
        received: list[int] = []
        try:
            connection.settimeout(REQUEST_SECONDS)
            length, received, _, _ = socket.recv_fds(connection, 8, MOST_DESCRIPTORS)
            with connection.makefile("rb") as sent:
                request = json.loads(sent.read(int.from_bytes(length, "big")))
            connection.settimeout(None)
            pid = 0
            if all(request["env"].get(name) == value for name, value in fixed.items()):
                try:
                    pid = self._fork(signal.SIGKILL)
                except OSError as error:  # too many processes, or too little memory: the caller starts Python itself
                    print(f"a process could not be forked ({error}); it is started anew", file=sys.stderr, flush=True)
                else:
                    if pid == 0:
                        return _become(request, received, connection)
            connection.sendall(pid.to_bytes(8, "big"))
        except (OSError, ValueError) as error:  # the caller ended before it had sent its request or had its answer
            if os.getpid() != self._owner:
                raise
            print(f"a request for a process was not completed: {error!r}", file=sys.stderr, flush=True)
        finally:
            if os.getpid() == self._owner:
                connection.close()
                for descriptor in received:
                    os.close(descriptor)
        return None


def _become(request: dict[str, Any], received: list[int], connection: socket.socket) -> Job:
    """Take on the arguments, variables and files of the process that asked, as if it had started this one."""
    connection = _take_files(received, request["descriptors"], connection)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    sys.argv = list(request["argv"])
    code = request["argv"][0] == "-c"
    # Ray sets OMP_NUM_THREADS=1 in an actor without CPUs of its own, as verl's are, but torch has read it by then.
    _renew_libraries(os.environ.get("OMP_NUM_THREADS", "" if code else "1"))
    if interpreter := os.environ.get(spawn.INTERPRETER):
        multiprocessing.set_executable(interpreter)  # what this process starts is forked too
    if code:
        del sys.argv[1]  # as Python does with the code
        ended = threading.Event()
        threading.Thread(target=_end_with, args=(connection, ended), daemon=True).start()
        return lambda: _run_code(request["argv"][1], connection, ended)
    connection.close()
    # Ray blocks Ctrl-C in all that it starts: it is the driver's to handle.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    return lambda: _run_script(request["argv"][0])


def _take_files(received: list[int], targets: list[int], connection: socket.socket) -> socket.socket:
    """Give the received files their original descriptors, and the connection one that none of them needs."""
    moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, _OUT_OF_THE_WAY) for descriptor in received]
    kept = socket.socket(fileno=fcntl.fcntl(connection.fileno(), fcntl.F_DUPFD_CLOEXEC, _OUT_OF_THE_WAY))
    connection.close()
    for descriptor in received:
        os.close(descriptor)
    for source, target in zip(moved, targets, strict=True):
        os.dup2(source, target)
        os.close(source)
    return kept


def _renew_libraries(threads: str) -> None:
    """Renew in a forked process the random state and torch's thread count; what is no number, "" or OpenMP's `4,2`,
    keeps torch's own."""
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()
    if threads.isdigit() and (torch := sys.modules.get("torch")):
        torch.set_num_threads(int(threads))


def _run_script(path: str) -> int:
    runpy.run_path(path, run_name="__main__")
    return 0


def _run_code(code: str, connection: socket.socket, ended: threading.Event) -> int:
    """Run `code` as `python -c` does, and send the exit status to the waiting `spawn.py`."""
    status = 1
    try:
        exec(code, {"__name__": "__main__"})  # noqa: S102 the program of `python -c`, from raylet or vLLM
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        ended.set()
        with suppress(OSError):
            connection.sendall(bytes([status & 0xFF]))
    return status


def _end_with(connection: socket.socket, ended: threading.Event) -> None:
    """End this process when the `spawn.py` that stands in for it has been killed."""
    with suppress(OSError):
        connection.recv(1)
    if not ended.is_set():
        os.kill(os.getpid(), signal.SIGKILL)


def _reap(driver_pid: int) -> int | None:
    """Collect ended children; the driver's exit status once it has ended, as a shell would report it."""
    status = None
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == driver_pid:
                code = os.waitstatus_to_exitcode(ended[1])
                status = code if code >= 0 else 128 - code
    return status


def die_with_parent(number: int, parent: int) -> None:
    """Have the kernel send this process the signal `number` when its parent ends (Linux); exit if it has ended."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(1)
