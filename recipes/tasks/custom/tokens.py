"""Prompt lengths of converted rows in the model's tokens, counted once for each tokenizer."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from recipes.errors import RecipeError
from recipes.tasks.lengths import PromptLengths
from recipes.tasks.rows import read_manifest

BATCH = 1024
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "chat_template.jinja", "vocab.json")


@dataclass(frozen=True)
class Lengths:
    """How many prompts have how many tokens."""

    counts: Counter[int]

    @property
    def longest(self) -> int:
        return max(self.counts)

    @property
    def shortest(self) -> int:
        return min(self.counts)

    def over(self, limit: int) -> int:
        """Prompts longer than `limit`."""
        return sum(count for length, count in self.counts.items() if length > limit)


def count(
    path: Path, tokenizer: str, chat_template: str | None, watch: Callable[[Iterable[dict], int], Iterable[dict]]
) -> Lengths:
    """The lengths of a split's prompts, with the chat template and without image tokens.

    Args:
        path: a parquet file of finished rows.
        tokenizer: a model's folder, or its name on a hub.
        chat_template: Jinja text that stands in for the model's own.
        watch: passes rows on and shows them; gets rows and their number.
    """
    kept = path.with_name(f"{path.stem}.tokens-{_identity(tokenizer, chat_template)}.json")
    rows = read_manifest(path)["rows"]
    try:
        found = Counter({int(length): number for length, number in json.loads(kept.read_text()).items()})
        if found.total() == rows:
            return Lengths(found)
    except (OSError, ValueError, AttributeError, TypeError):
        pass  # not counted yet, or cut short: it is counted anew
    lengths = PromptLengths(tokenizer, limit=1, chat_template=chat_template)
    for _ in watch(lengths.over(_prompts(path)), rows):
        pass
    found = Counter(lengths.lengths)
    draft = kept.with_suffix(f".{os.getpid()}.tmp")
    draft.write_text(json.dumps({str(length): number for length, number in sorted(found.items())}))
    draft.replace(kept)
    return Lengths(found)


def _prompts(path: Path) -> Iterable[dict]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(BATCH, columns=["prompt"]):
            yield from batch.to_pylist()


def _identity(tokenizer: str, chat_template: str | None) -> str:
    """What the lengths depend on besides the rows: the tokenizer's files, or its name on a hub, and the template."""
    digest = sha256((chat_template or "").encode())
    folder = Path(tokenizer)
    if not folder.is_dir():
        digest.update(tokenizer.encode())
    for name in _TOKENIZER_FILES:
        if (folder / name).is_file():
            digest.update((folder / name).read_bytes())
    return digest.hexdigest()[:12]


def judged(lengths: Lengths, limit: int, batch: int, where: str, fix_limit: str) -> list[str]:
    """Remarks on prompts that are too long. Raises RecipeError where too few are left to train on.

    Args:
        lengths: of the training prompts.
        limit: data.max_prompt_length.
        batch: prompts a step.
        where: who set the limit.
        fix_limit: how a user sets it.
    """
    total, over = lengths.counts.total(), lengths.over(limit)
    told = f"{over:,} of {total:,} prompts are longer than data.max_prompt_length {limit}"
    enough = f"set {fix_limit} to {lengths.longest}, or shorten the prompts"
    if over == total:
        raise RecipeError(
            f"every prompt is longer than data.max_prompt_length {limit}: they have {lengths.shortest} tokens and more",
            where=where,
            fix=enough,
        )
    if over and total - over < batch:
        raise RecipeError(f"{told}; the other {total - over} do not fill a step of {batch}", where=where, fix=enough)
    return [f"{told} and are dropped; {fix_limit}={lengths.longest} keeps them all"] if over else []
