"""Prompt lengths in tokens, as the trainer counts them.

Every prompt of a split is counted, and the counts are cached for each tokenizer, because importing transformers takes
seconds. recipes/preflight/data_files.py counts prompts with images. verl itself drops prompts longer than
data.max_prompt_length where data.filter_overlong_prompts is on.
"""

from __future__ import annotations

import json
from collections import Counter
from hashlib import sha256
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from recipes.data.rows import find_manifest
from recipes.errors import RecipeError, first_line
from recipes.files import write_whole
from recipes.model_files import TOKENIZER_FILES
from recipes.progress_bar import progress_bar

BATCH = 256

LEAST_VOCABULARY = 16
"""A tokenizer with fewer tokens is the placeholder that transformers makes for a folder without a tokenizer."""


def chat_tokenizer(path: str, chat_template: str | None = None, *, trust_remote_code: bool = False) -> Any:
    """A tokenizer with a chat template.

    Args:
        path: a folder, or a name on a hub.
        chat_template: Jinja text that stands in for the tokenizer's own.
        trust_remote_code: whether a tokenizer's own code may be run.

    Raises:
        RecipeError: `path` has no tokenizer, or its tokenizer has no chat template.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code)
    except (OSError, ValueError) as error:
        what = f"{path} is not a tokenizer: {first_line(error)}"
        raise RecipeError(what, where=path, fix="name a model's folder with its tokenizer") from error
    if len(tokenizer) < LEAST_VOCABULARY:
        raise RecipeError(f"{path} has no tokenizer", where=path, fix="put its tokenizer's files there")
    tokenizer.chat_template = chat_template or tokenizer.chat_template
    if not tokenizer.chat_template:
        fix = "add chat_template.jinja to its folder, or name a model that has one"
        raise RecipeError(f"{path} has no chat template", where=path, fix=fix)
    return tokenizer


def count_split(
    path: Path,
    tokenizer: str,
    chat_template: str | None = None,
    tools: list[dict[str, Any]] | None = None,
    *,
    trust_remote_code: bool = False,
) -> Counter[int]:
    """Count a split's prompts by their length in tokens, chat template included; an image counts only as its mark.

    If the file has a manifest and the tokenizer is a local folder, the counts are cached beside the file, until the
    rows, the tokenizer's files or the template change.

    Args:
        path: a parquet file of finished rows.
        tokenizer: a model's folder, or its name on a hub.
        chat_template: Jinja text that stands in for the model's own.
        tools: schemas of the tools that the template gets.
        trust_remote_code: whether a tokenizer's own code may be run.

    Raises:
        RecipeError: there is no tokenizer, or its chat template refuses a prompt.
    """
    import pyarrow.parquet as pq

    manifest, kept = find_manifest(path), None
    if manifest and Path(tokenizer).is_dir():
        shown = (chat_template or "") + (json.dumps(tools) if tools else "")
        kept = _kept_file(path, manifest.sha256, tokenizer, shown)
    if kept and kept.is_file():
        return Counter({int(length): count for length, count in json.loads(kept.read_text()).items()})
    lengths, loaded = Counter[int](), chat_tokenizer(tokenizer, chat_template, trust_remote_code=trust_remote_code)
    with progress_bar() as progress, pq.ParquetFile(path) as file:
        task = progress.add_task("tokens", total=file.metadata.num_rows)
        for batch in file.iter_batches(BATCH, columns=["prompt"]):
            try:
                prompts = batch["prompt"].to_pylist()
                texts = loaded.apply_chat_template(prompts, tokenize=False, add_generation_prompt=True, tools=tools)
            except (TemplateError, TypeError, IndexError) as error:
                what = f"the chat template refuses a prompt of the data: {error}"
                raise RecipeError(what, where=str(path), fix="write the prompts as the template has them") from error
            encoded = loaded(texts, add_special_tokens=False, return_attention_mask=False, verbose=False)
            lengths.update(len(ids) for ids in encoded["input_ids"])
            progress.advance(task, len(batch))
    if kept:
        write_whole(kept, json.dumps(dict(sorted(lengths.items()))))
    return lengths


def _kept_file(path: Path, rows: str, tokenizer: str, shown: str) -> Path:
    """Name of the file for the counts: it changes with the rows, the tokenizer, and the template and tools `shown`."""
    digest = sha256((rows + shown).encode())
    for name in TOKENIZER_FILES:
        if (file := Path(tokenizer) / name).is_file():
            digest.update(file.read_bytes())
    return path.with_name(f"{path.stem}.tokens-{digest.hexdigest()[:12]}.json")
