"""Prompt lengths in tokens, as the trainer counts them, and what a limit drops.

Whole splits are counted when they are made, and the first prompts of other files before a run; prompts with images are
counted by recipes/preflight/images.py. verl drops by itself, with data.filter_overlong_prompts.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recipes.data.rows import read_manifest
from recipes.errors import RecipeError
from recipes.progress_bar import progress_bar, tracked

if TYPE_CHECKING:
    from recipes.config import Recipe

BATCH = 256
BARS = 16
TEMPLATE_ROOM = 64
"""Tokens that a chat template may add to a prompt."""
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "chat_template.jinja", "vocab.json")


@dataclass
class Lengths:
    """How many prompts have how many tokens."""

    counts: Counter[int] = field(default_factory=Counter)

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt."""
        return max(self.counts)

    @property
    def shortest(self) -> int:
        """Tokens of the shortest prompt."""
        return min(self.counts)

    def over(self, limit: int) -> int:
        """Prompts longer than `limit`."""
        return sum(count for length, count in self.counts.items() if length > limit)

    def summary(self, limit: int) -> dict[str, Any]:
        """For the manifest: the limit and what it drops, min, median, 95th percentile, max, and range -> prompts."""
        import numpy as np

        lengths = np.repeat(list(self.counts), list(self.counts.values()))
        width = 8 * -(-self.longest // (8 * BARS))
        counts = np.bincount(lengths // width)
        first = self.shortest // width
        return {
            "limit": limit,
            "dropped_by_limit": self.over(limit),
            "min": self.shortest,
            "median": float(np.median(lengths)),
            "p95": float(np.percentile(lengths, 95)),
            "max": self.longest,
            "histogram": {f"{i * width}-{(i + 1) * width - 1}": int(counts[i]) for i in range(first, len(counts))},
        }


class PromptCounter:
    """Counts prompts with a tokenizer: chat template, generation prompt, no further specials, images without tokens."""

    def __init__(self, tokenizer_path: str, chat_template: str | None = None) -> None:
        """Load a tokenizer with a chat template.

        Args:
            tokenizer_path: a folder, or a name on a hub.
            chat_template: Jinja text that stands in for the tokenizer's own.
        """
        from transformers import AutoTokenizer

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

    def over(self, rows: Iterable[dict], lengths: Lengths) -> Iterator[dict]:
        """Hand rows on and count their prompts into `lengths`."""
        waiting: list[str] = []
        for row in rows:
            chat = row["prompt"]
            waiting.append(self._tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True))
            if len(waiting) == BATCH:
                self._count(waiting, lengths)
                waiting = []
            yield row
        if waiting:
            self._count(waiting, lengths)

    def _count(self, texts: list[str], lengths: Lengths) -> None:
        ids = self._tokenizer(texts, add_special_tokens=False, return_attention_mask=False, verbose=False)["input_ids"]
        lengths.counts.update(map(len, ids))


def tokenizer_of(recipe: Recipe) -> tuple[str, str | None]:
    """A recipe's tokenizer, a folder or a hub's name, and the text of the template that stands in for its own."""
    model, override = recipe.worker.actor.model, recipe.data.override_chat_template
    template = Path(override).read_text(encoding="utf-8") if override else None
    return str(model.tokenizer_path or model.model_path), template


def count_split(path: Path, tokenizer: str, chat_template: str | None = None) -> Lengths:
    """The lengths of a split's prompts, counted once: they are kept beside it, by tokenizer and template.

    Args:
        path: a parquet file of finished rows, with its manifest.
        tokenizer: a model's folder, or its name on a hub.
        chat_template: Jinja text that stands in for the model's own.
    """
    if kept := kept_lengths(path, tokenizer, chat_template):
        return kept
    lengths, counter = Lengths(), PromptCounter(tokenizer, chat_template)
    with progress_bar() as progress:
        rows = read_manifest(path)["rows"]
        for _ in tracked(counter.over(_prompts(path), lengths), progress, "tokens", rows):
            pass
    file = _kept_file(path, tokenizer, chat_template)
    draft = file.with_suffix(f".{os.getpid()}.tmp")
    draft.write_text(json.dumps(dict(sorted(lengths.counts.items()))))
    draft.replace(file)
    return lengths


def kept_lengths(path: Path, tokenizer: str, chat_template: str | None = None) -> Lengths | None:
    """What `count_split` has counted; None where it has not, or what is kept is cut short or of other rows."""
    try:
        counts = json.loads(_kept_file(path, tokenizer, chat_template).read_text())
        lengths = Lengths(Counter({int(length): count for length, count in counts.items()}))
        return lengths if lengths.counts.total() == read_manifest(path)["rows"] else None
    except (RecipeError, OSError, ValueError, AttributeError, TypeError, KeyError):
        return None


def _kept_file(path: Path, tokenizer: str, chat_template: str | None) -> Path:
    """The counts depend on the rows, the tokenizer's files, or its name on a hub, and the template."""
    digest = sha256((read_manifest(path)["sha256"] + (chat_template or "")).encode())
    folder = Path(tokenizer)
    if not folder.is_dir():
        digest.update(tokenizer.encode())
    for name in _TOKENIZER_FILES:
        if (folder / name).is_file():
            digest.update((folder / name).read_bytes())
    return path.with_name(f"{path.stem}.tokens-{digest.hexdigest()[:12]}.json")


def count_first(texts: Iterable[str], tokenizer_file: Path) -> Lengths:
    """The lengths of texts without a chat template, by `tokenizer.json` alone: transformers takes seconds to import."""
    from tokenizers import Tokenizer

    encoded = Tokenizer.from_file(str(tokenizer_file)).encode_batch(list(texts), add_special_tokens=False)
    return Lengths(Counter(len(encoding.ids) for encoding in encoded))


def _prompts(path: Path) -> Iterator[dict]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(BATCH, columns=["prompt"]):
            yield from batch.to_pylist()


def check_lengths(lengths: Lengths, recipe: Recipe, *, sampled: bool = False) -> list[str]:
    """Remarks on training prompts that are longer than data.max_prompt_length.

    Args:
        lengths: of the training prompts.
        sampled: whether these are some of the prompts, without the tokens of the chat template.

    Raises:
        RecipeError: too few prompts are left to train on.
    """
    limit, batch = recipe.data.max_prompt_length, recipe.data.rollout_batch_size
    total, over = lengths.counts.total(), lengths.over(limit)
    if not over:
        return []
    enough = lengths.longest + TEMPLATE_ROOM * sampled
    what = f"{over:,} of {'the first ' if sampled else ''}{total:,} prompts are longer than data.max_prompt_length"
    what += f" {limit}"
    if over == total:
        what = f"every prompt is longer than data.max_prompt_length {limit}: the shortest has {lengths.shortest} tokens"
    elif not sampled and total - over < batch:
        what += f"; the other {total - over} do not fill a step of {batch}"
    elif recipe.data.filter_overlong_prompts:
        return [f"{what} and are dropped; MAX_PROMPT_LENGTH={enough} keeps them all"]
    else:
        return [f"{what}, and data.filter_overlong_prompts is off: the trainer will stop there"]
    raise RecipeError(
        what,
        where=f"data.max_prompt_length, from {recipe.source_of('data.max_prompt_length')}",
        fix=f"set MAX_PROMPT_LENGTH to {enough}, or shorten the prompts",
    )


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
