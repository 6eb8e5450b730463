"""The trainer, started and supervised until it ends, hangs, fails or is interrupted."""

from __future__ import annotations

import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from recipes.config import Recipe, to_yaml
from recipes.config.variables import positive_number
from recipes.engines.checkpoints import withdraw_stop
from recipes.errors import counted
from recipes.paths import ROOT, relative_to_cwd
from recipes.runs import rollout_mismatch
from recipes.runs.best import BestCheckpoint
from recipes.runs.folder import RunFiles, begin_attempt
from recipes.runs.health import Health
from recipes.runs.log import LogReader, TrainerError, first_error, is_alarming, phase_of
from recipes.runs.metrics import MetricsFollower, Step, mark_lost_step, per_token, read_history
from recipes.runs.process import Child, shared_memory_cleared
from recipes.runs.responses import Responses
from recipes.runs.terminal import Progress

if TYPE_CHECKING:
    from rich.console import Console

WATCHDOG_MINUTES = 5.0
BUSY = 16.0
"""A run that works without a word is given so many times as long: on GPUs a hung NCCL call keeps a core busy."""
STARTING = 4.0
"""Before its first step a run has measured nothing of itself, and is given so many times as long."""
LONGER = 20.0
"""A silence that is so many times the longest one that the run came back from is a hang, however long that is."""
IDLE_SHARE = 0.2
"""Of one core: what Ray's daemons use while nothing happens stays below."""
_SAME_MOMENT_S = 2.0
"""A step that is read so soon after an exception may have been completed before it."""


@dataclass(frozen=True)
class Limits:
    """The shortest seconds without a sign of life after which a run is given up, once it has made a step.

    Each is `STARTING` times as long before, and never shorter than `LONGER` times what the run has come back from.

    Attributes:
        idle_s: no new line, no new metrics, and the processes use next to no CPU.
        silent_s: neither line nor metrics, however busy.
        alarmed_s: silent and idle after a line that reports an exception.
    """

    idle_s: float
    silent_s: float
    alarmed_s: float = 60.0

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Limits:
        """WATCHDOG_MINUTES, by default 5, when idle, and `BUSY` times that when busy."""
        minutes = positive_number(environ, "WATCHDOG_MINUTES", "for example 30") or WATCHDOG_MINUTES
        return cls(idle_s=60 * minutes, silent_s=60 * BUSY * minutes)


@dataclass
class _Spell:
    """A stretch of time that repeats: when the present one began, and the longest that has ended."""

    since: float | None = None
    longest: float = 0.0

    def lasted(self, now: float) -> float:
        return 0.0 if self.since is None else now - self.since

    def end(self, now: float) -> None:
        self.longest, self.since = max(self.longest, self.lasted(now)), None


class Watchdog:
    """Decides whether a run hangs, by what it has measured of the run; times are seconds on a clock that goes forward.

    Args:
        window_s: over how many seconds CPU use is averaged.
        crowding: runnable threads of the whole machine for each of its cores, where more than one; a run that has to
            share the cores uses that part of them.
    """

    def __init__(
        self, limits: Limits, now: float, window_s: float = 20.0, crowding: Callable[[], float] = lambda: 1.0
    ) -> None:
        self._limits, self._crowding = limits, crowding
        self._window = min(window_s, limits.alarmed_s, limits.idle_s)
        self._silence, self._idleness = _Spell(now), _Spell()
        self._alarmed_at: float | None = None
        self._stepped = False
        self._cpu: deque[tuple[float, float]] = deque()

    def note_output(self, now: float, alarming: bool) -> None:
        """Note new lines; `alarming` if one of them reports an exception."""
        self._sign(now)
        if alarming:
            self._alarmed_at = now

    def note_step(self, now: float) -> None:
        """Note a completed step: what was raised before it did no harm, unless both came about at once."""
        self._sign(now)
        self._stepped = True
        if self._alarmed_at is not None and now - self._alarmed_at > _SAME_MOMENT_S:
            self._alarmed_at = None

    def note_cpu(self, now: float, seconds: float) -> None:
        """Note the CPU time that the run's processes have used together."""
        self._cpu.append((now, seconds))
        while len(self._cpu) > 2 and now - self._cpu[1][0] >= self._window:
            self._cpu.popleft()
        if not self._is_idle():
            self._idleness.end(now)
        elif self._idleness.since is None:
            self._idleness.since = max(self._cpu[0][0], self._silence.since or 0.0)

    def verdict(self, now: float) -> str | None:
        """Return why the run has to be ended; None while it may go on."""
        patience = 1.0 if self._stepped else STARTING
        idle, silent = self._idleness.lasted(now), self._silence.lasted(now)
        measured = LONGER * self._idleness.longest
        if self._alarmed_at is not None and idle >= max(patience * self._limits.alarmed_s, measured):
            return f"an exception in a worker, then {idle:.0f} s without output and work: nothing answers the trainer"
        if idle >= max(patience * self._limits.idle_s, measured):
            return f"no output and no work for {idle / 60:.0f} minutes"
        if silent >= max(patience * self._limits.silent_s, LONGER * self._silence.longest):
            return f"no output for {silent / 60:.0f} minutes"
        return None

    def _sign(self, now: float) -> None:
        self._silence.end(now)
        self._idleness.end(now)
        self._silence.since = now

    def _is_idle(self) -> bool:
        (since, before), (now, after) = (self._cpu[0], self._cpu[-1]) if len(self._cpu) > 1 else ((0, 0), (0, 0))
        span = now - since
        share = IDLE_SHARE / max(1.0, self._crowding())
        # A process that ended takes its seconds along, so the sum may fall: that is work too.
        return span >= self._window * 0.5 and abs(after - before) < share * span


def crowding() -> float:
    """Runnable threads of the machine for each core, over the last minute."""
    return os.getloadavg()[0] / (os.cpu_count() or 1)


_POLL_S = 0.2
_PROCESSES_EVERY_S = 2.0
_RESPONSES_WAIT_S = 2.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Outcome:
    """End of a run.

    Attributes:
        code: the trainer's exit code; 0 for success.
        interrupted: the signal that the user sent.
        hung: why the watchdog ended the run.
        fault: what is wrong with a step's metrics, for which the run was ended.
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
        """Return what the launcher exits with: 128 + signal when interrupted, as shells do."""
        if self.interrupted:
            return 128 + self.interrupted
        return 1 if self.hung or self.fault or self.code != 0 else 0


class _Follower:
    """Prints what is new since the last call: log lines, and steps in order, each when its responses are written.

    Attributes:
        fault: the first text that one of `on_step` returned.
    """

    def __init__(
        self,
        log: LogReader,
        metrics: MetricsFollower,
        watchdog: Watchdog,
        progress: Progress,
        on_step: Sequence[Callable[[Step], str | None]],
    ) -> None:
        self._log, self._metrics, self._watchdog = log, metrics, watchdog
        self._progress, self._on_step = progress, on_step
        self._waiting: deque[tuple[float, Step]] = deque()
        self.fault: str | None = None

    def read(self, last: bool = False) -> None:
        """Take in what is new; at the last look no step waits for its responses."""
        now = time.monotonic()
        if lines := self._log.read():
            self._watchdog.note_output(now, any(is_alarming(line) for line in lines))
        for phase in filter(None, map(phase_of, lines)):
            self._progress.phase(phase)
        if steps := self._metrics.poll():
            self._watchdog.note_step(now)
            self._waiting += [(now, step) for step in steps]
        while self._waiting and (last or self._is_complete(*self._waiting[0], now)):
            _, step = self._waiting.popleft()
            self._progress.step(step)
            faults = [act(step) for act in self._on_step]
            self.fault = self.fault or next(filter(None, faults), None)

    def _is_complete(self, since: float, step: Step, now: float) -> bool:
        trained = step.get("timing_s/step") is not None
        return not trained or self._progress.has_responses(step) or now - since > _RESPONSES_WAIT_S


def supervise(
    child: Child,
    log: Path,
    offset: int,
    metrics: MetricsFollower,
    progress: Progress,
    limits: Limits,
    on_step: Sequence[Callable[[Step], str | None]] = (),
) -> Outcome:
    """Watch until the trainer ends; afterwards no process of the run is left.

    Args:
        child: the running trainer.
        log: its log, and `offset` where this attempt begins in it.
        metrics: follows the attempt's metrics.
        progress: prints to the user.
        limits: of the watchdog.
        on_step: called with each step after its line; a text that one returns is a fault, which ends the run.
    """
    watchdog = Watchdog(limits, time.monotonic(), crowding=crowding)
    new = _Follower(LogReader(log, offset), metrics, watchdog, progress, on_step)
    looked_at_processes, hung = 0.0, None
    with _caught_signals() as caught:
        while child.poll() is None and not caught:
            new.read()
            now = time.monotonic()
            if now - looked_at_processes >= _PROCESSES_EVERY_S:
                looked_at_processes = now
                child.refresh()
                watchdog.note_cpu(now, child.cpu_seconds())
            hung = watchdog.verdict(now)
            if hung or new.fault:
                break
            progress.tick()
            time.sleep(_POLL_S)
        ended_by_itself = child.poll() is not None
        if not ended_by_itself:
            progress.note("stopping the trainer, Ray and vLLM ...")
        asked = len(caught)
        left = child.stop(terminate_s=1.0 if hung or new.fault else 15.0, abort=lambda: len(caught) > asked)
    new.read(last=True)
    code = child.poll() or 0
    failed = hung is not None or (code != 0 and not caught and not new.fault)
    return Outcome(
        code=code,
        interrupted=caught[0] if caught and not (ended_by_itself and code == 0) else None,
        hung=hung,
        fault=new.fault,
        error=first_error(LogReader(log, offset).read()) if failed else None,
        left=tuple(left),
    )


@contextmanager
def _caught_signals() -> Iterator[list[signal.Signals]]:
    """Collect SIGINT, SIGTERM and SIGHUP instead of dying of them."""
    caught: list[signal.Signals] = []
    # What nohup or a shell had this process ignore stays ignored.
    handled = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, lambda got, _: caught.append(signal.Signals(got))) for number in handled}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def resumed_history(recipe: Recipe, files: RunFiles, last: int, console: Console) -> list[Step]:
    """The steps up to the checkpoint of step `last`. Raises RecipeError where one of them saw another image in vLLM."""
    if not last:
        return []
    if mark_lost_step(files.metrics, last):
        console.print(f"note: step {last} was saved, but the run ended before it logged the step's metrics")
    history = [per_token(step, recipe) for step in read_history(files.metrics) if step.step <= last]
    rollout_mismatch.refuse_checkpoint_after_mismatch(recipe, history)
    return history


def train(
    recipe: Recipe,
    files: RunFiles,
    command: Sequence[str],
    variables: Mapping[str, str],
    history: list[Step],
    total: int | None,
    limits: Limits,
    console: Console,
) -> Outcome:
    """Start the trainer and watch it until it ends.

    Args:
        command: the trainer's argument vector.
        variables: its environment beyond the launcher's own.
        history: the steps that it goes on from.
        total: steps of the run, where known.
        limits: of the watchdog.
    """
    bounds = rollout_mismatch.bounds(recipe, os.environ)
    withdraw_stop(Path(str(recipe.trainer.save_checkpoint_path)))
    offset = begin_attempt(files, to_yaml(recipe), command, variables)
    for note in recipe.unread:  # the last lines before hours of training: a mistyped MAX_STEPS shows in the number
        console.print(f"note: {note}; the run makes {counted(total, 'step') if total else 'all steps'}")
    console.print(f"the trainer's own output goes to {relative_to_cwd(files.log)}")

    written = Responses.of(recipe.trainer, since=time.time())
    on_step: list[Callable[[Step], str | None]] = [
        partial(rollout_mismatch.disagreement, limits=bounds),
        Health(recipe, history, written, console.print).add_step,
        *([BestCheckpoint(recipe, console.print).add_step] if recipe.trainer.keep_best else []),
    ]
    responses = written.training.of if recipe.trainer.rollout_data_dir else None
    with shared_memory_cleared(), Progress(console, total, responses) as progress:
        progress.phase("the trainer starts: Python's imports and Ray")
        return supervise(
            child=Child(command, {**os.environ, **variables}, files.log, ROOT),
            log=files.log,
            offset=offset,
            metrics=MetricsFollower(files.attempt, files.metrics, recipe),
            progress=progress,
            limits=limits,
            on_step=on_step,
        )
