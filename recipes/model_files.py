"""The files of a model's folder: where it lies, its configuration, its weights."""

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

    On the hub a name is NAME or NAME@REVISION; without a revision it is `main`, as the loaders take it.
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


OF_SAVING = ("dtype", "torch_dtype", "transformers_version", "attn_implementation", "_name_or_path")
"""Keys of `config.json` that say how a model was saved, not what it is."""


def architecture(folder: Path) -> dict[str, Any]:
    """The part of `config.json` that tells of a model's layers, whatever its weights are; empty if missing."""

    def kept(tree: Mapping[str, Any]) -> dict[str, Any]:
        parts = {name: value for name, value in tree.items() if name not in OF_SAVING}
        return {name: kept(value) if isinstance(value, Mapping) else value for name, value in parts.items()}

    return kept(model_config(folder))


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


VOCABULARY_BLOCK = 64
"""vLLM fills the vocabulary up to a multiple of this before it divides it."""


def indivisible(config: Mapping[str, Any], gpus: int) -> str | None:
    """The part of a model that vLLM cannot divide among the GPUs of one engine, such as `5 attention heads`, or None.

    vllm/config/model.py:1367 (`total_num_attention_heads % tensor_parallel_size`),
    vllm/model_executor/layers/linear.py:1367 (`divide(self.total_num_heads, tp_size)`),
    vllm/model_executor/layers/vocab_parallel_embedding.py:310 (`self.num_embeddings_per_partition = divide(`).
    """
    text, tower = text_config(config), config.get("vision_config") or {}
    key_heads = text.get("num_key_value_heads") or 1
    counts = {
        "attention heads": text.get("num_attention_heads"),
        "key-value heads": 0 if gpus % key_heads == 0 else key_heads,  # fewer heads than GPUs are copied
        "hidden units of an MLP": text.get("intermediate_size"),
        "hidden units of an expert": text.get("moe_intermediate_size"),
        "tokens of the vocabulary": -(-(text.get("vocab_size") or 0) // VOCABULARY_BLOCK) * VOCABULARY_BLOCK,
        "attention heads of the vision tower": tower.get("num_heads"),
        "hidden units of the vision tower's MLP": tower.get("intermediate_size"),
    }
    return next((f"{count:,} {name}" for name, count in counts.items() if count and count % gpus), None)


def gguf_file(name: str) -> Path | None:
    """The GGUF file that a path names, or the first in a folder without other weights; None if there is none."""
    path = Path(name)
    if path.suffix.lower() == ".gguf":
        return path
    return None if weight_files(path) else min(path.glob("*.gguf"), default=None)
