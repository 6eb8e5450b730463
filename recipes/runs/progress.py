"""The terminal's output of a run: the phases of its start, then a line per step."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from recipes.engines.reward_metrics import PART, logged_parts
from recipes.errors import counted
from recipes.runs.metrics import (
    KL,
    TIMINGS,
    Step,
    duration,
    measure_of,
    number,
    seconds_per_step,
    validation,
)
from recipes.runs.responses import Groups

if TYPE_CHECKING:
    from rich.console import Console

_SHOWN_FROM_S = 0.05
SILENCE_S = (10.0, 60.0)
"""Seconds between two lines where there is no terminal: until the first step, and after it."""


def time_left(recent: Sequence[Step], total: int | None) -> str:
    """`56 steps, 3.4 h left`, by the last steps; empty where that is not known, or nothing is left."""
    seconds = seconds_per_step(recent)
    steps = total - recent[-1].step if total and recent else 0
    if seconds is None or steps <= 0:
        return ""
    return f"{counted(steps, 'step')}, {duration(steps * seconds)} left"


def step_line(step: Step, total: int | None, responses: Groups | None = None, left: str = "") -> str:
    """One step in one line.

    Args:
        step: its metrics.
        total: steps of the run, where known.
        responses: its training responses, where they were written.
        left: steps and time to go, as `time_left` has them.
    """
    accuracy = ""
    if responses and (responses.measure == "accuracy" or responses.by_source):
        by_source = ", ".join(f"{source} {number(value)}" for source, value in responses.by_source.items())
        accuracy = f"{responses.measure} {number(responses.value)}" + (f" ({by_source})" if by_source else "")
    speed = step.get("perf/throughput")
    rewards = ", ".join(f"{name.removeprefix(PART)} {number(step.get(name))}" for name in logged_parts(step.data))
    parts = [
        f"step {step.step}/{total}" if total else f"step {step.step}",
        f"reward {number(step.get('critic/score/mean'))}" + (f" ({rewards})" if rewards else ""),
        accuracy,
        f"entropy {number(step.get('actor/entropy'))}",
        f"KL {number(step.get(*KL))}",
        f"grad-norm {number(step.get('actor/grad_norm'))}",
        f"{speed:,.0f} tokens/s/GPU" if speed is not None else "- tokens/s/GPU",
        _times(step),
        left,
    ]
    return " | ".join(filter(None, parts))


def _times(step: Step) -> str:
    phases = []
    for name, keys in TIMINGS:
        seconds = sum(step.get(key) or 0.0 for key in keys)
        if seconds >= _SHOWN_FROM_S:
            phases.append(f"{name} {seconds:.1f}")
    total = sum(step.get(key) or 0.0 for key in ("timing_s/step", "timing_s/testing"))
    return f"{total:.1f} s" + (f" ({', '.join(phases)})" if phases else "")


def validation_line(step: Step) -> str | None:
    """A validation's accuracies or scores in one line; None for a step without validation."""
    means = ", ".join(f"{source} {value:.3f}" for source, value in validation(step).items())
    return f"validation at step {step.step}: {measure_of(step)} {means}" if means else None


class Progress(AbstractContextManager["Progress"]):
    """Prints lines; on a terminal a spinner below them says what is going on now, and for how long.

    Args:
        console: where to.
        total: steps of the run, where known.
        responses: step number -> its training responses, once they are written; None where the run writes none.
        clock: seconds.
    """

    def __init__(
        self,
        console: Console,
        total: int | None,
        responses: Callable[[int], Groups | None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console, self._total, self._responses, self._clock = console, total, responses, clock
        self._started = self._since = clock()
        self._activity = ""
        self._said = self._started
        self._recent: deque[Step] = deque(maxlen=20)
        self._status = console.status("starting") if console.is_terminal else None

    def __enter__(self) -> Progress:
        (self._status or nullcontext()).__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status:
            self._status.stop()

    def phase(self, name: str) -> None:
        """Say that a phase of the start begins; once for each."""
        if name != self._activity:
            self.note(f"[{self._clock() - self._started:5.0f} s] {name}")
            self._now(name)

    def step(self, step: Step) -> None:
        """Print a step's line, and its validation's."""
        left = ""
        if step.get("timing_s/step") is not None:
            self._recent.append(step)
            left = time_left([*self._recent], self._total)
            responses = self._responses(step.step) if self._responses else None
            self.note(step_line(step, self._total, responses, left))
        if line := validation_line(step):
            self.note(line)
        if self._total is None or step.step < self._total:
            of = f" of {self._total}" if self._total else ""
            self._now(f"step {step.step + 1}{of}" + (f" ({left})" if left else ""))
        else:
            self._now("closing")

    def has_responses(self, step: Step) -> bool:
        """Return whether the responses of a step are written, or never will be."""
        return self._responses is None or self._responses(step.step) is not None

    def note(self, text: str) -> None:
        """Print a line."""
        self._said = self._clock()
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def tick(self) -> None:
        """Refresh the spinner's text; without a terminal, print it where nothing was printed for a while."""
        text = f"{self._activity}, {self._clock() - self._since:.0f} s"
        if self._status and self._activity:
            self._status.update(text)
        elif self._activity and self._clock() - self._said >= SILENCE_S[bool(self._recent)]:
            self.note(f"[{self._clock() - self._started:5.0f} s] {text}")

    def _now(self, activity: str) -> None:
        self._activity, self._since = activity, self._clock()
        self.tick()
