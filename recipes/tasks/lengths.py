"""Prompt lengths in tokens: their histogram, and what a prompt limit would drop."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from recipes.errors import RecipeError

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
