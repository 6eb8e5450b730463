"""What every data preparation script does alike: the command for the manifest, progress, and the closing table."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import Progress


def command() -> str:
    """The command line that runs now, for a manifest; the script stands with its name alone."""
    return shlex.join(["python", f"scripts/{Path(sys.argv[0]).name}", *sys.argv[1:]])


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """A bar with count, rate and time left on standard error; silent where that is not a terminal."""
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


def tracked(rows: Iterable[dict], progress: Progress, description: str, total: int) -> Iterator[dict]:
    """Pass rows through and show them on the bar, with rows a second."""
    task = progress.add_task(description, total=total, rate="")
    for count, row in enumerate(rows, 1):
        yield row
        if count % 256 == 0 or count == total:
            speed = progress.tasks[task].speed
            progress.update(task, completed=count, rate=f"{speed:,.0f} rows/s" if speed else "")


def print_splits(folder: Path, manifests: Sequence[dict[str, Any]], seconds: float) -> None:
    """The closing table: rows, what happened to the file, its hash, and how fast it was made."""
    from rich.console import Console
    from rich.table import Table

    rows = sum(manifest["rows"] for manifest in manifests)
    table = Table(title=f"{folder}: {rows:,} rows in {seconds:.1f} s, {rows / seconds:,.0f} a second")
    for column, justify in (
        ("file", "left"),
        ("rows", "right"),
        ("dropped", "right"),
        ("status", "left"),
        ("SHA-256", "left"),
    ):
        table.add_column(column, justify=justify)
    for manifest in manifests:
        dropped = ", ".join(f"{name} {count:,}" for name, count in manifest.get("dropped", {}).items() if count)
        cells = (manifest["file"], f"{manifest['rows']:,}", dropped or "-", manifest["status"], manifest["sha256"][:16])
        table.add_row(*cells)
    Console().print(table)
