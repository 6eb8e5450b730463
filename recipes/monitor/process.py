"""The trainer's processes: start, watch, end, clean up."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from recipes.monitor.log import LogReader, TrainerError, first_error, is_alarming, phase_of
from recipes.monitor.metrics import MetricsFollower, Step
from recipes.monitor.progress import Progress

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


IDLE_SHARE = 0.2
"""Of one core: what Ray's daemons use while nothing happens stays below."""
_TOGETHER_S = 2.0
"""A step that is read so soon after an exception may have been completed before it."""


@dataclass(frozen=True)
class Limits:
    """Seconds of silence (no new line, no new metrics) after which a run is given up.

    Attributes:
        idle_s: silent, and the processes use next to no CPU.
        silent_s: silent, however busy; on GPUs a hung NCCL call keeps a core busy.
        alarmed_s: silent and idle after a line that tells of an exception.
    """

    idle_s: float
    silent_s: float
    alarmed_s: float = 60.0

    @classmethod
    def from_minutes(cls, minutes: float) -> Limits:
        """`minutes` when idle, four times that when busy."""
        return cls(idle_s=60 * minutes, silent_s=240 * minutes)


class Watchdog:
    """Fed by the supervisor's loop with what it sees; asked for a verdict.

    Args:
        limits: how patient to be.
        now: seconds on any clock that only goes forward.
        window_s: over how many seconds CPU use is averaged.
    """

    def __init__(self, limits: Limits, now: float, window_s: float = 20.0) -> None:
        self._limits = limits
        self._window = min(window_s, limits.alarmed_s, limits.idle_s)
        self._last_sign = now
        self._alarmed_at: float | None = None
        self._cpu: deque[tuple[float, float]] = deque()

    def saw_output(self, now: float, alarming: bool) -> None:
        """Note new lines; `alarming` if one of them tells of an exception."""
        self._last_sign = now
        if alarming:
            self._alarmed_at = now

    def saw_step(self, now: float) -> None:
        """Note a completed step: what was raised before it did no harm, unless both came about at once."""
        self._last_sign = now
        if self._alarmed_at is not None and now - self._alarmed_at > _TOGETHER_S:
            self._alarmed_at = None

    def saw_cpu(self, now: float, seconds: float) -> None:
        """Note the CPU time that the run's processes have used together."""
        self._cpu.append((now, seconds))
        while len(self._cpu) > 2 and now - self._cpu[1][0] >= self._window:
            self._cpu.popleft()

    def verdict(self, now: float) -> str | None:
        """Why the run has to be ended, in words; None while it may go on."""
        silent = now - self._last_sign
        idle = self._is_idle()
        if self._alarmed_at is not None and idle and silent >= self._limits.alarmed_s:
            return f"an exception in a worker, then {silent:.0f} s of silence: nothing will answer the trainer"
        if idle and silent >= self._limits.idle_s:
            return f"no output and no work for {silent / 60:.0f} minutes"
        if silent >= self._limits.silent_s:
            return f"no output for {silent / 60:.0f} minutes"
        return None

    def _is_idle(self) -> bool:
        (since, before), (now, after) = (self._cpu[0], self._cpu[-1]) if len(self._cpu) > 1 else ((0, 0), (0, 0))
        span = now - since
        # A process that ended takes its seconds along, so the sum may fall: that is work too.
        return span >= self._window * 0.5 and abs(after - before) < IDLE_SHARE * span


_POLL_S = 0.2
_PROCESSES_EVERY_S = 2.0
_ACCURACY_WAIT_S = 2.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        code: the trainer's exit code; 0 for success.
        interrupted: the signal that the user sent, if one did.
        hung: why the watchdog ended the run, if it did.
        fault: what is wrong with a step's metrics, if something is; the run was ended, or had just ended by itself.
        error: the first real error of a run that failed.
        left: processes that could not be ended.
    """

    code: int
    interrupted: signal.Signals | None = None
    hung: str | None = None
    fault: str | None = None
    error: TrainerError | None = None
    left: tuple[int, ...] = ()

    @property
    def exit_code(self) -> int:
        """What the launcher exits with: 128 + signal when interrupted, as shells do."""
        if self.interrupted:
            return 128 + self.interrupted
        if self.hung or self.fault:
            return 1
        return 0 if self.code == 0 else 1


class _Steps:
    """Hands steps on in order, each when its training responses are written or after a moment."""

    def __init__(self, ready: Callable[[int], bool]) -> None:
        self._ready = ready
        self._waiting: list[tuple[float, Step]] = []

    def add(self, steps: list[Step], now: float) -> None:
        self._waiting += [(now, step) for step in steps]

    def take(self, now: float, everything: bool = False) -> Iterator[Step]:
        while self._waiting:
            since, step = self._waiting[0]
            untrained = step.get("timing_s/step") is None
            if not (everything or untrained or self._ready(step.step) or now - since > _ACCURACY_WAIT_S):
                return
            self._waiting.pop(0)
            yield step


def supervise(
    child: Child,
    log: Path,
    offset: int,
    metrics: MetricsFollower,
    progress: Progress,
    limits: Limits,
    rollouts_ready: Callable[[int], bool] = lambda _: True,
    judge: Callable[[Step], str | None] = lambda _: None,
) -> Outcome:
    """Watch until the trainer ends; afterwards no process of the run is left.

    Args:
        child: the running trainer.
        log: its log, and `offset` where this attempt begins in it.
        metrics: follows the attempt's metrics.
        progress: tells the user.
        limits: of the watchdog.
        rollouts_ready: whether the responses of a step are written.
        judge: what is wrong with a step, in words; anything but None ends the run.
    """
    reader, steps = LogReader(log, offset), _Steps(rollouts_ready)
    watchdog = Watchdog(limits, time.monotonic())
    looked_at_processes = 0.0
    hung: str | None = None
    fault: str | None = None
    with _caught_signals() as caught:
        while child.poll() is None and not caught:
            now = time.monotonic()
            fault = _follow(reader, metrics, steps, watchdog, progress, now, judge)
            if fault:
                break
            if now - looked_at_processes >= _PROCESSES_EVERY_S:
                looked_at_processes = now
                child.tree.refresh()
                watchdog.saw_cpu(now, child.tree.cpu_seconds())
            hung = watchdog.verdict(now)
            if hung:
                break
            progress.tick()
            time.sleep(_POLL_S)
        ended_by_itself = child.poll() is not None
        if not ended_by_itself:
            progress.note("stopping the trainer, Ray and vLLM ...")
        asked = len(caught)
        left = child.stop(polite_s=1.0 if hung or fault else 15.0, hurry=lambda: len(caught) > asked)
    late = _follow(reader, metrics, steps, watchdog, progress, time.monotonic(), judge, last=True)
    fault = fault or late
    code = child.poll()
    failed = hung is not None or (code != 0 and not caught and not fault)
    return Outcome(
        code=0 if code is None else code,
        interrupted=caught[0] if caught and not (ended_by_itself and code == 0) else None,
        hung=hung,
        fault=fault,
        error=first_error(LogReader(log, offset).read()) if failed else None,
        left=tuple(left),
    )


def _follow(
    reader: LogReader,
    metrics: MetricsFollower,
    steps: _Steps,
    watchdog: Watchdog,
    progress: Progress,
    now: float,
    judge: Callable[[Step], str | None],
    last: bool = False,
) -> str | None:
    """Take in what is new; what is wrong with the first new step that something is wrong with."""
    lines = reader.read()
    if lines:
        watchdog.saw_output(now, any(is_alarming(line) for line in lines))
    for line in lines:
        if told := phase_of(line):
            progress.phase(told)
    new = metrics.poll()
    if new:
        watchdog.saw_step(now)
        steps.add(new, now)
    for step in steps.take(now, everything=last):
        progress.step(step)
    return next((fault for step in new if (fault := judge(step))), None)


@contextmanager
def _caught_signals() -> Iterator[list[signal.Signals]]:
    """Collect the signals that ask for an end, instead of dying of them."""
    caught: list[signal.Signals] = []
    # What nohup or a shell told this process to ignore stays ignored.
    heeded = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, lambda got, _: caught.append(signal.Signals(got))) for number in heeded}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
