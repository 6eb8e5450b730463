"""A run on the terminal: the launcher's lines while it trains, and `monitor.py list` and `watch`."""

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from recipes.errors import counted, printable
from recipes.rewards.metrics import PART, TRAINING_ACCURACY, logged_parts
from recipes.runs.folder import Run, read
from recipes.runs.health import findings_of
from recipes.runs.metrics import KL, SHOWN, TIMINGS, Measured, Step, duration, number, seconds, seconds_left, validation

_SHOWN_FROM_S = 0.05
SILENCE_S = (10.0, 60.0)
"""Seconds without a line, after which the current activity is printed: before the first step, and after it."""
LOOK_S = 2.0
"""Seconds between two updates of `watch`."""


def time_left(recent: Sequence[Step], total: int | None) -> str:
    """`56 steps, 3.4 h left`, estimated from recent steps; empty if the time is not known or nothing is left."""
    left = seconds_left(recent, total)
    return f"{counted((total or 0) - recent[-1].step, 'step')}, {duration(left)} left" if left else ""


def step_line(step: Step, total: int | None, left: str = "") -> str:
    """The metrics of a step in one line, of so many in `total`; `left` is as `time_left` returns it."""
    accuracy, speed = step.get(TRAINING_ACCURACY), step.get("perf/throughput")
    rewards = ", ".join(f"{name.removeprefix(PART)} {number(step.get(name))}" for name in logged_parts(step.data))
    times = {name: sum(step.get(key) or 0.0 for key in keys) for name, keys in TIMINGS}
    phases = ", ".join(f"{name} {spent:.1f}" for name, spent in times.items() if spent >= _SHOWN_FROM_S)
    parts = [
        f"step {step.step}/{total}" if total else f"step {step.step}",
        f"reward {number(step.get('critic/score/mean'))}" + (f" ({rewards})" if rewards else ""),
        "" if accuracy is None else f"accuracy {number(accuracy)}",
        f"entropy {number(step.get('actor/entropy'))}",
        f"KL {number(step.get(*KL))}",
        f"grad-norm {number(step.get('actor/grad_norm'))}",
        f"{speed:,.0f} tokens/s/GPU" if speed is not None else "- tokens/s/GPU",
        f"{seconds(step):.1f} s" + (f" ({phases})" if phases else ""),
        left,
    ]
    return " | ".join(filter(None, parts))


def validation_line(step: Step, over_questions: Measured | None = None) -> str | None:
    """A validation in one line: by data source, and over the questions of all; None for a step without validation."""
    if (validated := validation(step)) is None:
        return None
    means = ", ".join(f"{source} {value:.3f}" for source, value in validated.means.items())
    if over_questions and len(validated.means) > 1:
        means = f"{over_questions.value:.3f} ({means})"
    return f"validation at step {step.step}: {validated.measure} {means}"


class LastingOutput:
    """Standard output; once its reader has ended, as `tee` does at Ctrl-C, the terminal or else a file takes the rest.

    Control characters, which a data source's name may have, are written out.
    """

    def __init__(self, instead: Path) -> None:
        self._instead = instead

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stdout, name)

    def write(self, text: str) -> None:
        self._lastingly(sys.stdout.write, printable(text))

    def flush(self) -> None:
        self._lastingly(sys.stdout.flush)

    def _lastingly(self, write: Callable[..., Any], *text: str) -> None:
        """Write, and after a broken pipe once more: what the pipe did not take is still there for the other place."""
        try:
            write(*text)
        except BrokenPipeError:
            try:
                other = os.open("/dev/tty", os.O_WRONLY)
            except OSError:
                self._instead.parent.mkdir(parents=True, exist_ok=True)
                other = os.open(self._instead, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            for descriptor in (2, 1) if os.path.sameopenfile(1, 2) else (1,):  # `2>&1 | tee` is usual
                os.dup2(other, descriptor)
            write(*text)


class Progress:
    """Prints lines: phases, steps, validations, and after a silence the current activity and its seconds so far."""

    def __init__(
        self,
        console: Console,
        total: int | None,  # steps of the run, where known
        held_out: Callable[[Step], Measured | None] = lambda step: None,  # gives the validation of a step
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console, self._total, self._held_out, self._clock = console, total, held_out, clock
        self._started = self._since = self._said = clock()
        self._activity, self._begun = "", set[str]()
        self._recent: deque[Step] = deque(maxlen=20)

    def phase(self, name: str) -> None:
        """Print that a phase of the start begins, the first time: EasyR1 reads the reference model after the policy."""
        if name not in self._begun:
            self._begun.add(name)
            self.note(f"[{self._clock() - self._started:5.0f} s] {name}")
            self._now(name)

    def step(self, step: Step) -> None:
        """Print the line of a step, and the line of its validation if it has one."""
        left = ""
        if step.get("timing_s/step") is not None:
            self._recent.append(step)
            left = time_left([*self._recent], self._total)
            self.note(step_line(step, self._total, left))
        if line := validation_line(step, self._held_out(step)):
            self.note(line)
        if self._total is None or step.step < self._total:
            of = f" of {self._total}" if self._total else ""
            self._now(f"step {step.step + 1}{of}" + (f" ({left})" if left else ""))
        else:
            self._now("closing")

    def note(self, text: str) -> None:
        self._said = self._clock()
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def tick(self) -> None:
        """Print the current activity if nothing was printed for a while."""
        now = self._clock()
        if self._activity and now - self._said >= SILENCE_S[bool(self._recent)]:
            self.note(f"[{now - self._started:5.0f} s] {self._activity}, {now - self._since:.0f} s")

    def _now(self, activity: str) -> None:
        self._activity, self._since = activity, self._clock()


def listing(runs: Iterable[Run]) -> Table:
    """A table with one row per run."""
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
    return f"{run.measure} {number(run.validated.value)}" if run.validated else "-"


def view(run: Run) -> RenderableType:
    """One run: head, first and last value of each metric, rules, the last step, notes."""
    head = f"{run.name}: {run.state}, step {run.step}{f' of {run.total}' if run.total else ''}, {_held_out(run)}"
    head += f", {duration(run.left_s)} to go" if run.left_s is not None else ""
    head += f", last written {duration(run.silent_s)} ago" if run.silent_s is not None else ""
    metrics, rules = (Table(box=None, pad_edge=False, show_header=False) for _ in range(2))
    rows = {f"held-out {run.measure}": [each.value for each in run.validations.values()]}
    rows |= {name: [value for _, value in run.series(*keys)] for name, keys in SHOWN.items()}
    rows["training score"] = [value for step, value in run.series(*SHOWN["training score"]) if step > run.since]
    for name, values in rows.items():
        if values:
            metrics.add_row(name, f"{number(values[0])} → {number(values[-1])}")
    for finding in findings_of(run):
        advice = f"\nusually: {finding.rule.meaning}\ntry: {finding.rule.advice}" if finding.alarming else ""
        rules.add_row(finding.status, finding.rule.name, Text(finding.evidence + advice))
    last = next((step_line(step, run.total) for step in reversed(run.history) if step.step), "no step yet")
    return Group(Text(head), "", metrics, "", rules, "", *map(Text, [last, *(f"note: {note}" for note in run.notes)]))


def watch(folder: Path, console: Console, once: bool, sleep: Callable[[float], None] = time.sleep) -> None:
    """Show a run until it ends or Ctrl-C; with `once`, or where the output is no terminal, as it is now."""
    run = read(folder)
    if once or not console.is_terminal:
        console.print(view(run))
        return
    shown = Live(view(run), console=console, auto_refresh=False, vertical_overflow="visible")
    with suppress(KeyboardInterrupt), shown as live:
        while run.state in ("starting", "running"):
            sleep(LOOK_S)
            run = read(folder)
            live.update(view(run), refresh=True)
