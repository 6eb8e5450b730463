"""The terminal view of runs: a table of all, and one run live with sparklines and a light for each rule."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from recipes.runs.folder import Run, read
from recipes.runs.health import Status, findings_of
from recipes.runs.metrics import SHOWN, duration, mean_validation, number
from recipes.runs.progress import step_line
from recipes.runs.responses import Responses

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

LIGHTS: dict[Status, tuple[str, str]] = {
    "ok": ("green", "●"),
    "explained": ("cyan", "●"),
    "unknown": ("dim", "○"),
    "warning": ("yellow", "▲"),
    "failure": ("bold red", "✖"),
}
_BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: Iterable[float], width: int = 40) -> str:
    """Values as bars between their least and their greatest; the mean of neighbours where there are more than `width`.

    Values that are not finite leave a gap.
    """
    points = list(values)
    if len(points) > width:
        edges = [round(index * len(points) / width) for index in range(width + 1)]
        points = [sum(points[a:b]) / (b - a) for a, b in pairwise(edges)]
    finite = [value for value in points if abs(value) < float("inf")]
    if not finite:
        return " " * len(points)
    low, high = min(finite), max(finite)
    half = high / 2 - low / 2  # the span itself may overflow
    top = len(_BARS) - 1
    return "".join(
        (_BARS[round((value / 2 - low / 2) / half * top)] if half else _BARS[3]) if abs(value) < float("inf") else " "
        for value in points
    )


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
