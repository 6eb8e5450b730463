"""A run on the terminal: the launcher's lines while it trains, and `monitor.py list` and `watch`."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from recipes.engines.reward_contract import PART, logged_parts
from recipes.errors import counted
from recipes.runs.folder import Run, read
from recipes.runs.health import Status, findings_of
from recipes.runs.metrics import (
    KL,
    SHOWN,
    TIMINGS,
    Step,
    duration,
    mean_validation,
    measure_of,
    number,
    seconds_per_step,
    validation,
)
from recipes.runs.responses import Groups, Responses

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

_SHOWN_FROM_S = 0.05
SILENCE_S = (10.0, 60.0)
"""Seconds between two lines: until the first step, and after it."""


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
    accuracy = f"accuracy {number(responses.value)}" if responses and responses.measure == "accuracy" else ""
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


class Progress:
    """Prints lines: phases, steps, validations, and in every silence what is going on now, and for how long.

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
        """Say what is going on where nothing was printed for a while."""
        now = self._clock()
        if self._activity and now - self._said >= SILENCE_S[bool(self._recent)]:
            self.note(f"[{now - self._started:5.0f} s] {self._activity}, {now - self._since:.0f} s")

    def _now(self, activity: str) -> None:
        self._activity, self._since = activity, self._clock()


LIGHTS: dict[Status, tuple[str, str]] = {
    "ok": ("green", "●"),
    "explained": ("cyan", "●"),
    "unknown": ("dim", "○"),
    "warning": ("yellow", "▲"),
    "failure": ("bold red", "✖"),
}
_BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: Iterable[float], width: int = 40) -> str:
    """Values as bars between their least and their greatest; evenly spread ones where there are more than `width`."""
    points = [value for value in values if math.isfinite(value)]
    points = points[:: math.ceil(len(points) / width) or 1]
    low, high = min(points, default=0.0), max(points, default=0.0)
    return "".join(_BARS[int((value - low) / ((high - low) or 1.0) * (len(_BARS) - 1))] for value in points)


def listing(runs: Iterable[Run]) -> Table:
    """One row a run."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in ("run", "state", "step", "held-out", "best kept", "checkpoint", "left"):
        table.add_column(name, overflow="fold")
    for run in runs:
        best = f"{number(run.best.value)} (step {run.best.step})" if run.best else "-"
        saved = f"step {run.checkpoint.step}" if run.checkpoint else "-"
        step = f"{run.step}/{run.total}" if run.total else str(run.step)
        table.add_row(run.name, run.state, step, _held_out(run), best, saved, duration(run.left_s))
    return table


def _held_out(run: Run) -> str:
    return f"{run.measure} {number(run.held_out)}" if run.validated else "-"


def view(run: Run, responses: Responses) -> RenderableType:
    """One run: head, curves, rules, notes."""
    from rich.console import Group
    from rich.markup import escape
    from rich.table import Table

    trained = [step for step in run.history if step.step]
    head = f"[bold]{escape(run.name)}[/]  {run.state}, step {run.step}{f' of {run.total}' if run.total else ''}"
    head += f", {_held_out(run)}" if run.validated else ""
    head += f", {duration(run.left_s)} to go" if run.left_s is not None else ""
    curves = Table(box=None, pad_edge=False, show_header=False)
    validated = [value for step in run.history if (value := mean_validation(step)) is not None]
    series = [(f"held-out {run.measure}", validated)]
    series += [(name, [value for _, value in run.series(*keys)]) for name, keys in SHOWN.items()]
    for name, values in series:
        if values:
            curves.add_row(name, sparkline(values), " → ".join(map(number, values[:: max(1, len(values) - 1)])))
    lights = Table(box=None, pad_edge=False, show_header=False)
    for finding in findings_of(run, responses):
        colour, light = LIGHTS[finding.status]
        text = escape(finding.evidence)
        if finding.alarming:
            text += f"\n[dim]usually: {escape(finding.rule.meaning)}\ntry: {escape(finding.rule.advice)}[/]"
        lights.add_row(f"[{colour}]{light}[/]", finding.rule.name, text)
    last = "no step yet"
    if trained:
        last = escape(step_line(trained[-1], run.total, responses.training.of(trained[-1].step)))
    notes = [f"[yellow]note: {escape(note)}[/]" for note in run.notes]
    return Group(head, "", curves, "", lights, "", last, *notes)


def watch(
    folder: Path, console: Console, every_s: float, once: bool, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Show a run until it ends or Ctrl-C; only files are read, so the run pays nothing.

    Args:
        every_s: seconds between two looks.
        once: show the run as it is now and return; so it is where the output is no terminal.
    """
    from rich.live import Live

    run = read(folder)
    responses = run.responses()
    if once or not console.is_terminal:
        console.print(view(run, responses))
        return
    with Live(view(run, responses), console=console, auto_refresh=False, vertical_overflow="visible") as live:
        try:
            while run.state in ("starting", "running"):
                sleep(every_s)
                run = read(folder)
                live.update(view(run, responses), refresh=True)
        except KeyboardInterrupt:
            return
