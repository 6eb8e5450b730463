"""Prompt lengths in tokens, as the trainer counts them, and how many prompts are longer than the limit.

Every prompt of a split is counted, and the counts are cached for each tokenizer, because importing transformers takes
seconds. recipes/preflight/images.py counts prompts with images. verl itself drops longer prompts where
data.filter_overlong_prompts is on.
"""

from __future__ import annotations

import json
from collections import Counter
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError

from recipes.data.manifests import find_manifest
from recipes.errors import RecipeError
from recipes.files import write_whole
from recipes.model_files import TOKENIZER_FILES, local_model, positions
from recipes.progress_bar import progress_bar

if TYPE_CHECKING:
    from recipes.config import Recipe

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
        what = f"{path} is not a tokenizer: {str(error).splitlines()[0]}"
        raise RecipeError(what, where=path, fix="name a model's folder with its tokenizer") from error
    if len(tokenizer) < LEAST_VOCABULARY:
        raise RecipeError(f"{path} has no tokenizer", where=path, fix="put its tokenizer's files there")
    tokenizer.chat_template = chat_template or tokenizer.chat_template
    if not tokenizer.chat_template:
        fix = "add chat_template.jinja to its folder, or name a model that has one"
        raise RecipeError(f"{path} has no chat template", where=path, fix=fix)
    return tokenizer


def tokenizer_of(recipe: Recipe) -> tuple[str, str | None]:
    """A recipe's tokenizer (folder, or name on a hub), and the chat template's text that replaces its own, or None."""
    model, override = recipe.worker.actor.model, recipe.data.override_chat_template
    template = Path(override).read_text(encoding="utf-8") if override else None
    return str(model.tokenizer_path or model.model_path), template


def count_split(
    path: Path, tokenizer: str, chat_template: str | None = None, *, trust_remote_code: bool = False
) -> Counter[int]:
    """Count a split's prompts by their length in tokens, chat template included; images count as 0.

    If the file has a manifest and the tokenizer is a local folder, the counts are cached beside the file, until the
    rows, the tokenizer's files or the template change.

    Args:
        path: a parquet file of finished rows.
        tokenizer: a model's folder, or its name on a hub.
        chat_template: Jinja text that stands in for the model's own.
        trust_remote_code: whether a tokenizer's own code may be run.

    Raises:
        RecipeError: there is no tokenizer, or its chat template refuses a prompt.
    """
    import pyarrow.parquet as pq

    manifest, kept = find_manifest(path), None
    if manifest and Path(tokenizer).is_dir():
        kept = _kept_file(path, manifest.sha256, tokenizer, chat_template)
    if kept and kept.is_file():
        return Counter({int(length): count for length, count in json.loads(kept.read_text()).items()})
    lengths, loaded = Counter[int](), chat_tokenizer(tokenizer, chat_template, trust_remote_code=trust_remote_code)
    with progress_bar() as progress, pq.ParquetFile(path) as file:
        task = progress.add_task("tokens", total=file.metadata.num_rows)
        for batch in file.iter_batches(BATCH, columns=["prompt"]):
            try:
                prompts = batch["prompt"].to_pylist()
                texts = loaded.apply_chat_template(prompts, tokenize=False, add_generation_prompt=True)
            except (TemplateError, TypeError, IndexError) as error:
                what = f"the chat template refuses a prompt of the data: {error}"
                raise RecipeError(what, where=str(path), fix="write the prompts as the template has them") from error
            encoded = loaded(texts, add_special_tokens=False, return_attention_mask=False, verbose=False)
            lengths.update(len(ids) for ids in encoded["input_ids"])
            progress.advance(task, len(batch))
    if kept:
        write_whole(kept, json.dumps(dict(sorted(lengths.items()))))
    return lengths


def _kept_file(path: Path, rows: str, tokenizer: str, chat_template: str | None) -> Path:
    """Name of the file for the counts: it changes with the rows, the tokenizer and the template."""
    digest = sha256((rows + (chat_template or "")).encode())
    for name in TOKENIZER_FILES:
        if (file := Path(tokenizer) / name).is_file():
            digest.update(file.read_bytes())
    return path.with_name(f"{path.stem}.tokens-{digest.hexdigest()[:12]}.json")


MOST_DROPPED = 0.1
"""Largest share of training prompts that is dropped without the user asking for it: so few prompts are outliers."""


def check_lengths(lengths: Counter[int], recipe: Recipe) -> list[str]:
    """Remarks on training prompts that are longer than data.max_prompt_length.

    Args:
        lengths: from `count_split`.

    Raises:
        RecipeError: too few prompts are left to fill a step, or more than `MOST_DROPPED` would be dropped and the user
            did not set data.filter_overlong_prompts.
    """
    limit, batch, drops = recipe.data.max_prompt_length, recipe.data.rollout_batch_size, "data.filter_overlong_prompts"
    total, over = lengths.total(), sum(count for length, count in lengths.items() if length > limit)
    if not over:
        return []
    enough = max(lengths)
    what = f"{over:,} of {total:,} prompts are longer than data.max_prompt_length {limit}"
    if total - over < batch:
        what += f"; the other {total - over} do not fill a step of {batch}"
    elif not recipe.data.filter_overlong_prompts:
        return [f"{what}, and {drops} is off: the trainer will stop there"]
    elif over > MOST_DROPPED * total and not recipe.source_of(drops).by_user:
        what += f" and would be dropped; {drops}=true drops them, if that is what you want"
    else:
        return [f"{what} and are dropped; MAX_PROMPT_LENGTH={enough} keeps them all"]
    known = positions(local_model(str(recipe.worker.actor.model.model_path)))
    fix = f"set MAX_PROMPT_LENGTH to {enough}, or shorten the prompts"
    if known is not None and enough + recipe.data.max_response_length > known:
        fix = f"shorten the prompts, or take a model with more than {known} positions for prompt and response"
    where = f"data.max_prompt_length, from {recipe.source_of('data.max_prompt_length')}"
    raise RecipeError(what, where=where, fix=fix)
