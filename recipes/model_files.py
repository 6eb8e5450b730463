"""The files of a model's folder: where it lies, its configuration, its weights."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")
"""Files of which a folder with a tokenizer has at least one."""
TOKENIZER_FILES = (
    *(*TOKENIZERS, "vocab.txt", "merges.txt"),
    *("special_tokens_map.json", "added_tokens.json", "chat_template.jinja", "chat_template.json"),
)
"""Files that decide which tokens a prompt has."""
PROCESSORS = ("preprocessor_config.json", "processor_config.json")
"""Files of which a folder with an image processor has at least one."""
PROCESSOR_FILES = (*PROCESSORS, "video_preprocessor_config.json")
"""Files that decide what a model sees of images and videos."""


def local_model(name: str | None) -> Path | None:
    """Return a model's folder on this machine: `name` itself or its revision in the hub's cache, else None.

    Args:
        name: a folder, or NAME or NAME@REVISION on the hub; without a revision `main`, as the loaders take it.
    """
    if not name:
        return None
    if Path(name).is_dir():
        return Path(name)
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    hub = os.environ.get("HF_HUB_CACHE") or home / "hub"
    repository, _, revision = name.partition("@")
    try:
        config = try_to_load_from_cache(repository, "config.json", cache_dir=hub, revision=revision or None)
    except HFValidationError:  # a folder that is missing, or an address: no name on the hub
        return None
    return Path(config).parent if isinstance(config, str) else None


def read_json(file: Path) -> dict[str, Any]:
    """The object in a JSON file; empty where the file is missing or has no object."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def model_config(folder: Path | None) -> dict[str, Any]:
    """The content of `config.json`; empty if missing or unreadable, which `recipes.preflight.model` reports."""
    return read_json(folder / "config.json") if folder else {}


def text_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration with the keys of its language model, which a vision-language model has under `text_config`."""
    return {**config, **(config.get("text_config") or {})}


def weight_files(folder: Path) -> list[Path]:
    """The files that hold a model's weights."""
    return sorted([*folder.glob("*.safetensors"), *folder.glob("pytorch_model*.bin")])


ALREADY_SCALED = ("su", "longrope", "llama3")
"""RoPE types for which `max_position_embeddings` already includes the scaling factor, as vLLM reads them."""


def positions(folder: Path | None) -> int | None:
    """The longest sequence in tokens that a local model supports; None where its `config.json` does not say.

    As vllm/config/model.py:2396 (`if rope_type not in`).
    """
    config = text_config(model_config(folder))
    known = config.get("max_position_embeddings")
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    kind = scaling.get("rope_type") or scaling.get("type")
    if not known or kind in ALREADY_SCALED:
        return known
    if kind == "yarn":
        known = scaling.get("original_max_position_embeddings") or known
    return int(known * float(scaling.get("factor") or 1))


def gguf_file(name: str) -> Path | None:
    """The GGUF file that a path names, or the first in a folder without other weights; None if there is none."""
    path = Path(name)
    if path.suffix.lower() == ".gguf":
        return path
    found = sorted(path.glob("*.gguf")) if path.is_dir() and not weight_files(path) else []
    return found[0] if found else None
