"""The loop that watches a trainer until it ends, is told to, or has to be ended."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from recipes.supervise.child import Child
from recipes.supervise.first_error import TrainerError, first_error, is_alarming
from recipes.supervise.log import LogReader, phase_of
from recipes.supervise.metrics import MetricsFollower, Step
from recipes.supervise.progress import Progress
from recipes.supervise.watchdog import Limits, Watchdog

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
