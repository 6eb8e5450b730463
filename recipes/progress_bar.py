"""The progress of everything that takes a while: a bar on a terminal, a line every ten seconds elsewhere."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from rich.progress import Progress

Item = TypeVar("Item")
SILENCE = 10.0
"""Seconds between two lines where there is no terminal."""


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """Show tasks with count, rate and time left on standard error."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    terminal = console.is_terminal
    progress = Progress(*columns, console=console, disable=not terminal)
    with progress, nullcontext() if terminal else _lines(progress):
        yield progress


@contextmanager
def _lines(progress: Progress) -> Iterator[None]:
    """Print a line about each unfinished task, again and again; in a thread, since a task may be one long call."""
    ended = threading.Event()

    def say() -> None:
        while not ended.wait(SILENCE):
            for task in progress.tasks:
                if not task.finished:
                    of = f" of {task.total:,.0f}" if task.total else ""
                    line = f"{task.description}: {task.completed:,.0f}{of}, {task.elapsed or 0:.0f} s"
                    print(line, file=sys.stderr, flush=True)

    threading.Thread(target=say, daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def tracked(items: Iterable[Item], progress: Progress, description: str, total: int | None = None) -> Iterator[Item]:
    """Pass items on and show them on the bar, with items a second; `total` is None where it is not known."""
    task = progress.add_task(description, total=total, rate="")
    count = 0
    for count, item in enumerate(items, 1):
        yield item
        if count % 256 == 0:
            speed = progress.tasks[task].speed
            progress.update(task, completed=count, rate=f"{speed:,.0f} a second" if speed else "")
    progress.update(task, completed=count, total=count)
