"""A run that says nothing and does nothing: noticed, so that a hang costs minutes and not a night.

verl waits for ever when a vLLM worker fails during a weight sync; nothing else would end such a run.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

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
