"""The progress bar of everything that takes a while; a line every ten seconds where standard error is no terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from rich.progress import Progress

Item = TypeVar("Item")
SILENCE = 10.0
"""Seconds between two lines where there is no terminal."""


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """A bar with count, rate and time left."""
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
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        yield progress


def tracked(items: Iterable[Item], progress: Progress, description: str, total: int | None = None) -> Iterator[Item]:
    """Pass items on and show them on the bar, with items a second; `total` is None where it is not known."""
    task = progress.add_task(description, total=total, rate="")
    said = time.monotonic()
    for count, item in enumerate(items, 1):
        yield item
        if progress.disable:
            if time.monotonic() - said >= SILENCE:
                said = time.monotonic()
                print(f"{description}: {count:,}{f' of {total:,}' if total else ''}", file=sys.stderr, flush=True)
        elif count % 256 == 0 or count == total:
            speed = progress.tasks[task].speed
            progress.update(task, completed=count, rate=f"{speed:,.0f} a second" if speed else "")
