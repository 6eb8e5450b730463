"""A progress bar on a terminal, and a line every ten seconds elsewhere."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import Progress

SILENCE = 10.0
"""Seconds between two lines where there is no terminal."""


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """Show tasks with count and time left on standard error."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    ended = threading.Event()
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        if not console.is_terminal:  # in a thread, since a task may be one long call
            threading.Thread(target=_print_lines, args=(progress, ended), daemon=True).start()
        try:
            yield progress
        finally:
            ended.set()


def _print_lines(progress: Progress, ended: threading.Event) -> None:
    while not ended.wait(SILENCE):
        for task in [task for task in progress.tasks if not task.finished][-1:]:
            of = f" of {task.total:,.0f}" if task.total else ""
            line = f"{task.description}: {task.completed:,.0f}{of}, {task.elapsed or 0:.0f} s"
            print(line, file=sys.stderr, flush=True)
