"""Prompt lengths in tokens, as the trainer counts them.

The counts are cached for each tokenizer, because importing transformers takes seconds.
recipes/preflight/data_files.py counts prompts with images.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from jinja2 import TemplateError

from recipes.data.rows import find_manifest
from recipes.errors import RecipeError, first_line
from recipes.files import write_whole
from recipes.model_files import TOKENIZER_FILES
from recipes.progress_bar import progress_bar

BATCH = 256

LEAST_VOCABULARY = 16
"""A tokenizer with fewer tokens is the placeholder that transformers makes for a folder without a tokenizer."""

TRUST = "trust_remote_code"
"""In the errors of transformers and vLLM where a model's own code is not run."""
OWN_CODE = f"worker.actor.model.{TRUST}=true runs the model's own code"


def chat_tokenizer(path: str, chat_template: str | None = None, *, trust_remote_code: bool = False) -> Any:
    """The tokenizer of a folder or a hub's name; `chat_template` is Jinja text that stands in for its own.

    Raises RecipeError where there is no tokenizer, or no chat template.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code)
    except (OSError, ValueError) as error:
        what, fix = f"{path} is not a tokenizer: {first_line(error)}", "name a model's folder with its tokenizer"
        raise RecipeError(what, where=path, fix=OWN_CODE if TRUST in str(error) else fix) from error
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
    rows, the tokenizer's files, the template or the schemas of `tools` that it gets change. Raises RecipeError where
    there is no tokenizer, or its chat template refuses a prompt.
    """

    manifest, kept = find_manifest(path), None
    if manifest and Path(tokenizer).is_dir():
        digest = sha256((manifest.sha256 + (chat_template or "") + (json.dumps(tools) if tools else "")).encode())
        for file in map(Path(tokenizer).joinpath, TOKENIZER_FILES):
            digest.update(file.read_bytes() if file.is_file() else b"")
        kept = path.with_name(f"{path.stem}.tokens-{digest.hexdigest()[:12]}.json")
    if kept and kept.is_file():
        return Counter({int(length): count for length, count in json.loads(kept.read_text()).items()})
    from transformers import PreTrainedTokenizerFast

    lengths, loaded = Counter[int](), chat_tokenizer(tokenizer, chat_template, trust_remote_code=trust_remote_code)
    is_own = not getattr(loaded, "is_fast", False) or type(loaded)._encode_plus != PreTrainedTokenizerFast._encode_plus
    if fast := None if is_own else loaded.backend_tokenizer:
        fast.no_truncation()
        fast.no_padding()
    with progress_bar() as progress, pq.ParquetFile(path) as file:
        task = progress.add_task("tokens", total=file.metadata.num_rows)
        for batch in file.iter_batches(BATCH, columns=["prompt"]):
            try:
                prompts = batch["prompt"].to_pylist()
                texts = loaded.apply_chat_template(prompts, tokenize=False, add_generation_prompt=True, tools=tools)
            except (TemplateError, TypeError, IndexError) as error:
                what = f"the chat template refuses a prompt of the data: {error}"
                where = f"{path}, between rows {lengths.total()} and {lengths.total() + len(batch) - 1}, counted from 0"
                raise RecipeError(what, where=where, fix="write the prompts as the template has them") from error
            if fast:  # 40% of the time goes into where in the text each token stands, which nobody asks for
                encoded = fast.encode_batch_fast(texts, add_special_tokens=False)
            else:
                encoded = loaded(texts, add_special_tokens=False, verbose=False)["input_ids"]
            lengths.update(map(len, encoded))
            progress.advance(task, len(batch))
    if kept:
        write_whole(kept, json.dumps(dict(sorted(lengths.items()))))
    return lengths


def picture_tokens(processor: Any, bounds: Mapping[str, int]) -> Callable[[int, int], int]:
    """A function from a picture's height and width to its tokens in a prompt, as a model's own processor counts them.

    `bounds` are the processor's min_pixels and max_pixels, where these are given.
    """
    from PIL import Image

    @cache
    def count(height: int, width: int) -> int:
        by_size = getattr(processor, "_get_num_multimodal_tokens", None)  # what vLLM asks, too
        if by_size is not None:
            return int(by_size(image_sizes=[(height, width)], **bounds)["num_image_tokens"][0])
        blank = Image.new("RGB", (width, height))
        encoded = processor(text=[processor.image_token], images=[blank], add_special_tokens=False, **bounds)
        return len(encoded["input_ids"][0])

    return count
