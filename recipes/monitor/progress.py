"""What the user sees while a run goes on: the phase of the start, then a line per step."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from recipes.monitor.metrics import Step, validation

if TYPE_CHECKING:
    from rich.console import Console

# Metric names of verl, the first one that is there counts. KL comes from the reward or from the loss.
KL = ("actor/reward_kl_penalty", "actor/kl_loss")
TIMINGS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("generate", ("timing_s/gen",)),
    ("reward", ("timing_s/reward",)),
    ("log-probs", ("timing_s/old_log_prob", "timing_s/ref")),
    ("update", ("timing_s/update_actor", "timing_s/update_critic")),
    ("sync", ("timing_s/update_weights",)),
    ("validate", ("timing_s/testing",)),
    ("save", ("timing_s/save_checkpoint",)),
)
_SHOWN_FROM_S = 0.05


def number(value: float | None, digits: int = 3) -> str:
    """A number for a line; a dash where the trainer gave none."""
    if value is None:
        return "-"
    if value != 0 and abs(value) < 10**-digits:
        return f"{value:.1e}"
    return f"{value:.{digits}f}"


WINDOW = 20
"""Steps over which the time of one is averaged: long enough to hold validations and saves."""


def duration(seconds: float) -> str:
    """Seconds in the unit that a reader takes: `40 s`, `12 min`, `3.4 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"


class Pace:
    """Seconds a step, validations and saves included, from when steps were seen to end.

    The first step of an attempt, which reads weights and compiles, counts only until there is a second one.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._ends: deque[float] = deque(maxlen=WINDOW + 1)
        self._first: float | None = None

    def step(self, step: Step) -> None:
        """Take note of a step that has just ended."""
        if not self._ends:
            self._first = step.get("timing_s/step")
        self._ends.append(self._clock())

    @property
    def seconds(self) -> float | None:
        """Seconds a step; None before the first."""
        if len(self._ends) > 1:
            return (self._ends[-1] - self._ends[0]) / (len(self._ends) - 1)
        return self._first

    def left(self, step: int, total: int | None) -> str:
        """`56 steps, 3.4 h left`; empty where that is not known, or nothing is left."""
        seconds, steps = self.seconds, (total or step) - step
        if seconds is None or steps <= 0:
            return ""
        return f"{steps} step{'s' * (steps != 1)}, {duration(steps * seconds)} left"


def step_line(
    step: Step,
    total: int | None,
    accuracy: float | None,
    by_source: Mapping[str, float] | None = None,
    left: str = "",
) -> str:
    """One step in one line.

    Args:
        step: its metrics.
        total: steps of the run, where known.
        accuracy: share of the training responses with the full score.
        by_source: the same for each data source, where there are several.
        left: steps and time to go, in words.
    """
    told = ", ".join(f"{source} {number(share)}" for source, share in (by_source or {}).items())
    speed = step.get("perf/throughput")
    parts = [
        f"step {step.step}/{total}" if total else f"step {step.step}",
        f"reward {number(step.get('critic/score/mean'))}",
        f"accuracy {number(accuracy)}" + (f" ({told})" if told else ""),
        f"entropy {number(step.get('actor/entropy'))}",
        f"KL {number(step.get(*KL))}",
        f"grad-norm {number(step.get('actor/grad_norm'))}",
        f"{speed:,.0f} tokens/s/GPU" if speed is not None else "- tokens/s/GPU",
        _times(step),
        *([left] if left else []),
    ]
    return " | ".join(parts)


def _times(step: Step) -> str:
    phases = []
    for name, keys in TIMINGS:
        seconds = sum(step.get(key) or 0.0 for key in keys)
        if seconds >= _SHOWN_FROM_S:
            phases.append(f"{name} {seconds:.1f}")
    total = sum(step.get(key) or 0.0 for key in ("timing_s/step", "timing_s/testing"))
    return f"{total:.1f} s" + (f" ({', '.join(phases)})" if phases else "")


def validation_line(step: Step) -> str | None:
    """Validation accuracy in one line; None for a step without validation."""
    found = validation(step)
    if not found:
        return None
    told = ", ".join(f"{source} {value:.3f}" for source, value in found.items())
    return f"validation at step {step.step}: accuracy {told}"


class Progress(AbstractContextManager["Progress"]):
    """Prints lines; on a terminal a spinner below them says what is going on now, and for how long.

    Args:
        console: where to.
        total: steps of the run, where known.
        accuracy: step number -> accuracy of the training responses.
        by_source: step number -> the same for each data source, where there are several.
        clock: seconds.
    """

    def __init__(
        self,
        console: Console,
        total: int | None,
        accuracy: Callable[[int], float | None],
        clock: Callable[[], float] = time.monotonic,
        by_source: Callable[[int], Mapping[str, float]] = lambda step: {},
    ) -> None:
        self._by_source = by_source
        self._console, self._total, self._accuracy, self._clock = console, total, accuracy, clock
        self._started = self._since = clock()
        self._activity = ""
        self._pace = Pace(clock)
        self._status = console.status("starting") if console.is_terminal else None

    def __enter__(self) -> Progress:
        (self._status or nullcontext()).__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status:
            self._status.stop()

    def phase(self, told: str) -> None:
        """Say that a phase of the start begins; once for each."""
        if told != self._activity:
            self._say(f"[{self._clock() - self._started:5.0f} s] {told}")
            self._now(told)

    def step(self, step: Step) -> None:
        """Print a step's line, and its validation's."""
        if step.get("timing_s/step") is not None:
            shares = self._by_source(step.step)
            self._pace.step(step)
            left = self._pace.left(step.step, self._total)
            self._say(step_line(step, self._total, self._accuracy(step.step), shares, left))
        if line := validation_line(step):
            self._say(line)
        if self._total is None or step.step < self._total:
            left = self._pace.left(step.step, self._total)
            of = f" of {self._total}" if self._total else ""
            self._now(f"step {step.step + 1}{of}" + (f" ({left})" if left else ""))
        else:
            self._now("closing")

    def note(self, text: str) -> None:
        """Print something else."""
        self._say(text)

    def tick(self) -> None:
        """Refresh the spinner's text."""
        if self._status and self._activity:
            self._status.update(f"{self._activity}, {self._clock() - self._since:.0f} s")

    def _now(self, activity: str) -> None:
        self._activity, self._since = activity, self._clock()
        self.tick()

    def _say(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)
