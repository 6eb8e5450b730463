"""The model, before the trainer starts."""

from __future__ import annotations

import json
import os
from pathlib import Path

from recipes.config import PathKey, Recipe, path_keys
from recipes.config.machine import has_packed_attention, lacks_flash_attention
from recipes.errors import RecipeError
from recipes.paths import local_model

SECTION = "docs/INSTALLATION.md, section flash-attn"
WITHOUT_PACKING = (None, "eager", "sdpa", "flash_attention_2")
"""Attention that without flash-attn cannot tell packed responses apart, or is not there; None is verl's own choice."""


def check_attention(recipe: Recipe) -> list[str]:
    """Raise where verl would ask for flash-attn, or let packed responses see each other; remark on what is without it.

    Raises:
        RecipeError: names the key that asks for it.
    """
    if recipe.hardware != "gpu" or recipe.engine != "verl" or not lacks_flash_attention():
        return []
    actor, packing = recipe.worker.actor, recipe.source_of("worker.actor.padding_free")
    attention = actor.model.override_config.get("attn_implementation")
    if recipe.has_critic and not has_packed_attention():
        raise RecipeError(
            "verl loads a critic with flash-attention (verl/utils/model.py), and flash-attn is not installed here",
            where=f"algorithm.adv_estimator, from {recipe.source_of('algorithm.adv_estimator')}",
            fix=f"install it ({SECTION}), or take an algorithm without a critic, for instance ALGORITHM=rloo",
        )
    if actor.padding_free and attention in WITHOUT_PACKING:
        raise RecipeError(
            f"worker.actor.padding_free packs responses, and the attention {attention or 'flash_attention_2'} "
            "cannot keep them apart here",
            where=f"worker.actor.padding_free, from {packing}",
            fix=f"leave worker.actor.padding_free and PADDING_FREE away, or install flash-attn ({SECTION})",
        )
    if actor.padding_free or packing.by_user:
        return []
    return [f"{packing}: padding is kept, and micro-batches have a fixed number of responses; see {SECTION}"]


_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer_config.json")
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")


def check_model(recipe: Recipe) -> list[str]:
    """Raise where the model, or what stands in for its tokenizer, is not there or is not a model."""
    remarks = []
    for key in path_keys(recipe):
        if key.kind != "model":
            continue
        if key.on_hub:
            remarks += _on_hub(key)
        elif key.key.endswith("tokenizer_path"):
            _has_tokenizer(key)
        else:
            _is_model(key)
    _long_enough(recipe)
    return remarks


def weights(folder: Path) -> list[Path]:
    """The files that hold a model's weights."""
    return sorted([*folder.glob("*.safetensors"), *folder.glob("pytorch_model*.bin")])


def _long_enough(recipe: Recipe) -> None:
    """Prompt and response must fit the positions that the model knows (vLLM refuses only after minutes)."""
    folder, data = local_model(recipe.worker.actor.model.model_path), recipe.data
    if folder is None:
        return
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    text = config.get("text_config") or config
    positions = text.get("max_position_embeddings")
    scaling = text.get("rope_scaling") or text.get("rope_parameters") or {}
    wanted = data.max_prompt_length + data.max_response_length
    if not positions or wanted <= positions * float(scaling.get("factor") or 1):
        return
    raise RecipeError(
        f"prompt and response may have {wanted} tokens together, but the model has positions for {positions}",
        where="data.max_prompt_length + data.max_response_length, against max_position_embeddings of the model",
        fix="lower MAX_PROMPT_LENGTH or MAX_RESPONSE_LENGTH, or take a model with a longer context",
    )


def _is_model(key: PathKey) -> None:
    folder = Path(key.path)
    where = f"{key.key}, from {key.source}"
    if not folder.exists():
        raise RecipeError(
            f"the model {folder} does not exist", where=where, fix="set MODEL_PATH to a folder or a hub's name"
        )
    config = folder / "config.json"
    if not config.is_file():
        raise RecipeError(
            f"{folder} is not a model: it has no config.json", where=where, fix="set MODEL_PATH to a model's folder"
        )
    try:
        architecture = json.loads(config.read_text(encoding="utf-8")).get("architectures")
    except (ValueError, AttributeError) as error:
        raise RecipeError(f"{config} cannot be read: {error}", where=where, fix="fetch the model again") from error
    if not architecture:
        raise RecipeError(f"{config} names no architecture", where=where, fix="give a causal language model")
    if not weights(folder):
        raise RecipeError(f"{folder} has no weights (*.safetensors)", where=where, fix="fetch the model again, whole")
    pointer = next((file for file in weights(folder) if file.stat().st_size < 1024), None)
    if pointer is not None:
        raise RecipeError(
            f"{pointer} is too small to hold weights",
            where=where,
            fix="fetch it again: `git lfs pull` if it came by git",
        )
    _has_tokenizer(key)


def _has_tokenizer(key: PathKey) -> None:
    folder = Path(key.path)
    if not any((folder / name).is_file() for name in _TOKENIZERS):
        raise RecipeError(
            f"{folder} has no tokenizer",
            where=f"{key.key}, from {key.source}",
            fix="put the model's tokenizer files there",
        )


def _on_hub(key: PathKey) -> list[str]:
    if local_model(key.path):
        return []
    offline = next((name for name in _OFFLINE if os.environ.get(name, "").upper() in ("1", "ON", "YES", "TRUE")), None)
    if offline:
        raise RecipeError(
            f"the model {key.path} is no folder here and not in the hub's cache, and {offline} forbids asking the hub",
            where=f"{key.key}, from {key.source}",
            fix=f"unset {offline}, or set MODEL_PATH to a folder",
        )
    return [f"the model {key.path} is not in the hub's cache yet: the trainer fetches it first"]
