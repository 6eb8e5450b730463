"""Supervision of a running trainer: its log, metrics and processes, until it ends, hangs, fails or is interrupted."""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from recipes.errors import RecipeError
from recipes.monitor.log import LogReader, TrainerError, first_error, is_alarming, phase_of
from recipes.monitor.metrics import MetricsFollower, Step
from recipes.monitor.process import Child
from recipes.monitor.progress import Progress

WATCHDOG_MINUTES = 20.0
IDLE_SHARE = 0.2
"""Of one core: what Ray's daemons use while nothing happens stays below."""
_SAME_MOMENT_S = 2.0
"""A step that is read so soon after an exception may have been completed before it."""


@dataclass(frozen=True)
class Limits:
    """Seconds of silence (no new line, no new metrics) after which a run is given up.

    Attributes:
        idle_s: silent, and the processes use next to no CPU.
        silent_s: silent, however busy; on GPUs a hung NCCL call keeps a core busy.
        alarmed_s: silent and idle after a line that reports an exception.
    """

    idle_s: float
    silent_s: float
    alarmed_s: float = 60.0

    @classmethod
    def from_minutes(cls, minutes: float) -> Limits:
        """`minutes` when idle, four times that when busy."""
        return cls(idle_s=60 * minutes, silent_s=240 * minutes)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Limits:
        """By WATCHDOG_MINUTES, by default 20. Raises RecipeError for what is no positive number."""
        text = environ.get("WATCHDOG_MINUTES", "").strip()
        try:
            minutes = float(text) if text else WATCHDOG_MINUTES
        except ValueError:
            minutes = 0.0
        if minutes > 0:
            return cls.from_minutes(minutes)
        raise RecipeError(
            f"WATCHDOG_MINUTES={text} is not a positive number", where="variable WATCHDOG_MINUTES", fix="for example 30"
        )


class Watchdog:
    """Decides whether a run hangs.

    Args:
        limits: seconds of silence that are allowed.
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
        """Note new lines; `alarming` if one of them reports an exception."""
        self._last_sign = now
        if alarming:
            self._alarmed_at = now

    def saw_step(self, now: float) -> None:
        """Note a completed step: what was raised before it did no harm, unless both came about at once."""
        self._last_sign = now
        if self._alarmed_at is not None and now - self._alarmed_at > _SAME_MOMENT_S:
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
        fault: what is wrong with a step's metrics; the run was ended for it.
        enough: why the run was ended in order before its last step.
        error: the first real error of a run that failed.
        left: processes that could not be ended.
    """

    code: int
    interrupted: signal.Signals | None = None
    hung: str | None = None
    fault: str | None = None
    enough: str | None = None
    error: TrainerError | None = None
    left: tuple[int, ...] = ()

    @property
    def exit_code(self) -> int:
        """What the launcher exits with: 128 + signal when interrupted, as shells do."""
        if self.interrupted:
            return 128 + self.interrupted
        if self.hung or self.fault:
            return 1
        if self.enough:
            return 0
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
    after_step: Callable[[Step], str | None] = lambda _: None,
) -> Outcome:
    """Watch until the trainer ends; afterwards no process of the run is left.

    Args:
        child: the running trainer.
        log: its log, and `offset` where this attempt begins in it.
        metrics: follows the attempt's metrics.
        progress: prints to the user.
        limits: of the watchdog.
        rollouts_ready: whether the responses of a step are written.
        judge: returns what is wrong with a step, or None; a fault ends the run.
        after_step: called with each step after its line; returns why the run is to end in order after it, or None.
    """
    reader, steps = LogReader(log, offset), _Steps(rollouts_ready)
    watchdog = Watchdog(limits, time.monotonic())
    looked_at_processes = 0.0
    hung: str | None = None
    fault: str | None = None
    enough: str | None = None
    with _caught_signals() as caught:
        while child.poll() is None and not caught:
            now = time.monotonic()
            fault, enough = _follow(reader, metrics, steps, watchdog, progress, now, judge, after_step)
            if fault or enough:
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
        left = child.stop(terminate_s=1.0 if hung or fault else 15.0, abort=lambda: len(caught) > asked)
    late, _ = _follow(reader, metrics, steps, watchdog, progress, time.monotonic(), judge, after_step, last=True)
    fault = fault or late
    code = child.poll()
    failed = hung is not None or (code != 0 and not caught and not fault and not enough)
    return Outcome(
        code=0 if code is None else code,
        interrupted=caught[0] if caught and not (ended_by_itself and code == 0) else None,
        hung=hung,
        fault=fault,
        enough=enough,
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
    after_step: Callable[[Step], str | None],
    last: bool = False,
) -> tuple[str | None, str | None]:
    """Read new lines and steps; returns what `judge` and `after_step` say of the first step that they object to."""
    lines = reader.read()
    if lines:
        watchdog.saw_output(now, any(is_alarming(line) for line in lines))
    for line in lines:
        if phase := phase_of(line):
            progress.phase(phase)
    new = metrics.poll()
    if new:
        watchdog.saw_step(now)
        steps.add(new, now)
    enough = None
    for step in steps.take(now, everything=last):
        progress.step(step)
        enough = enough or after_step(step)
    return next((fault for step in new if (fault := judge(step))), None), enough


@contextmanager
def _caught_signals() -> Iterator[list[signal.Signals]]:
    """Collect SIGINT, SIGTERM and SIGHUP instead of dying of them."""
    caught: list[signal.Signals] = []
    # What nohup or a shell told this process to ignore stays ignored.
    handled = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, lambda got, _: caught.append(signal.Signals(got))) for number in handled}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
