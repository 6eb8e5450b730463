"""Preparing a data set: difficulty buckets, prompt lengths, progress and the closing table."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recipes.config import Recipe, path_keys
from recipes.errors import RecipeError
from recipes.paths import ROOT


def make_missing(recipe: Recipe, log: Callable[[str], None]) -> None:
    """Run the recipe's `prepare` command if data files that the recipe itself names are missing.

    Args:
        log: takes the line that says what is run.

    Raises:
        RecipeError: the command failed.
    """
    files = (key for key in path_keys(recipe) if key.kind == "data" and not key.on_hub)
    absent = [key for key in files if not Path(key.path).exists() and not key.source.by_user]
    if not absent or not recipe.prepare:
        return
    log(f"making the data: python {' '.join(recipe.prepare)}")
    code = subprocess.run([sys.executable, *recipe.prepare], cwd=ROOT, check=False).returncode
    if code:
        raise RecipeError(
            f"the data could not be made (exit code {code}; its message is above)",
            where=f"prepare, from {recipe.source_of('prepare')}",
            fix=f"mend it, then: python {' '.join(recipe.prepare)}",
        )


# Shares in percent. RL training gets fewer than pretraining because each of its problems is sampled many times.
SHARES = {"pretrain": 50, "train": 30, "test": 20}


def bucket_of(key: str) -> str:
    """`pretrain`, `train` or `test`, by the SHA-256 of the key: the same on every machine and for every seed.

    Args:
        key: what makes a problem this problem, written in one way only.
    """
    point = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") % 100
    for name, share in SHARES.items():
        if point < share:
            return name
        point -= share
    raise AssertionError("the shares do not sum to 100")


BATCH = 256
BARS = 16


class PromptLengths:
    """Counts the tokens of prompts as the trainer does: chat template, generation prompt, no further specials."""

    def __init__(self, tokenizer_path: str, limit: int, chat_template: str | None = None) -> None:
        """Load a tokenizer with a chat template, by path or name.

        Args:
            tokenizer_path: a folder, or a name on a hub.
            limit: `data.max_prompt_length`.
            chat_template: Jinja text that stands in for the tokenizer's own.
        """
        from transformers import AutoTokenizer

        if limit < 1:
            raise RecipeError(f"a limit of {limit} tokens", where="--max_prompt_length", fix="give 1 or more")
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(tokenizer_path)
        except (OSError, ValueError) as error:
            first_line = str(error).splitlines()[0]
            raise RecipeError(
                f"{tokenizer_path} is not a tokenizer: {first_line}", where="--tokenizer", fix="name a model's folder"
            ) from error
        if chat_template is not None:
            self._tokenizer.chat_template = chat_template
        if not self._tokenizer.chat_template:
            raise RecipeError(
                f"{tokenizer_path} has no chat template", where="--tokenizer", fix="name a model that has one"
            )
        self.limit = limit
        self.lengths: list[int] = []

    def over(self, rows: Iterable[dict]) -> Iterator[dict]:
        """Hand rows on and count their prompts."""
        waiting: list[str] = []
        for row in rows:
            waiting.append(
                self._tokenizer.apply_chat_template(row["prompt"], tokenize=False, add_generation_prompt=True)
            )
            if len(waiting) == BATCH:
                self._count(waiting)
                waiting = []
            yield row
        if waiting:
            self._count(waiting)

    def _count(self, texts: Sequence[str]) -> None:
        ids = self._tokenizer(texts, add_special_tokens=False, return_attention_mask=False, verbose=False)["input_ids"]
        self.lengths.extend(map(len, ids))

    def summary(self) -> dict[str, Any]:
        """For the manifest: the limit and what it drops, min, median, 95th percentile, max, and range -> prompts."""
        import numpy as np

        lengths = np.array(self.lengths)
        width = 8 * -(-int(lengths.max()) // (8 * BARS))
        counts = np.bincount(lengths // width)
        first = int(lengths.min()) // width
        return {
            "limit": self.limit,
            "dropped_by_limit": int((lengths > self.limit).sum()),
            "min": int(lengths.min()),
            "median": float(np.median(lengths)),
            "p95": float(np.percentile(lengths, 95)),
            "max": int(lengths.max()),
            "histogram": {f"{i * width}-{(i + 1) * width - 1}": int(counts[i]) for i in range(first, len(counts))},
        }


def print_lengths(split: str, summary: dict[str, Any]) -> None:
    """The histogram as bars, and what the limit drops."""
    from rich.console import Console
    from rich.table import Table

    dropped, limit = summary["dropped_by_limit"], summary["limit"]
    table = Table(title=f"{split}: tokens of a prompt; a limit of {limit} drops {dropped:,} rows", show_header=False)
    most = max(summary["histogram"].values())
    for span, count in summary["histogram"].items():
        table.add_row(span, "█" * -(-40 * count // most), f"{count:,}")
    Console().print(table)
    spread = f"median {summary['median']:g}, 95% up to {summary['p95']:g}, longest {summary['max']}"
    Console().print(f"  {spread}")


if TYPE_CHECKING:
    from rich.progress import Progress


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
