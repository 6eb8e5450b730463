"""Make `actor/huggingface` of a checkpoint a model that transformers and vLLM load, whatever was trained.

verl saves a LoRA model as peft wraps it: every tensor under `base_model.model.`, adapters beside the frozen weights
(verl/utils/checkpoint/fsdp_checkpoint_manager.py:462). Nothing loads that. `trainer.checkpoint_callback_class` is
verl's hook after a save; `MergedModels` merges the adapters there. Resuming is not touched: it reads other files.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from verl.trainer.ppo.checkpoint_callback import CheckpointCallback

PREFIX = "base_model.model."
BASE = ".base_layer."
ADAPTERS = (".lora_A.default.weight", ".lora_B.default.weight")
INDEX = "model.safetensors.index.json"


class MergedModels(CheckpointCallback):
    """Called by the trainer, in the driver, after each save."""

    def on_save(self, trainer: Any, global_step: int, checkpoint_dir: str, **kwargs: Any) -> None:
        for folder in Path(checkpoint_dir).glob("*/huggingface"):
            merge_adapters(folder)


def merge_adapters(folder: Path) -> bool:
    """Merge LoRA adapters, if the model in this folder has any, into the weights that they belong to.

    Each weight W becomes W + (alpha / r) B A, in its own type; alpha and r are in `lora_train_meta.json` above.

    Returns:
        Whether there was something to merge. Files are replaced only after all new ones are written.
    """
    shards = sorted(folder.glob("*.safetensors"))
    if not any(name.startswith(PREFIX) for shard in shards for name in _names(shard)):
        return False
    meta = json.loads((folder.parent / "lora_train_meta.json").read_text(encoding="utf-8"))
    adapters = _adapters(shards)
    scaling = meta["lora_alpha"] / meta["r"]
    written = [_write_merged(shard, adapters, scaling) for shard in shards]
    for new, shard in zip(written, shards, strict=True):
        os.replace(new, shard)
    if (folder / INDEX).is_file():
        _write_index(folder / INDEX, shards)
    return True


def _names(shard: Path) -> list[str]:
    from safetensors import safe_open

    with safe_open(shard, framework="pt") as file:
        return list(file.keys())


def _adapters(shards: Iterable[Path]) -> dict[str, Any]:
    from safetensors import safe_open

    found = {}
    for shard in shards:
        with safe_open(shard, framework="pt") as file:
            names = list(file.keys())
            found.update({name: file.get_tensor(name) for name in names if name.endswith(ADAPTERS)})
    return found


def _write_merged(shard: Path, adapters: dict[str, Any], scaling: float) -> Path:
    from safetensors.torch import load_file, save_file

    merged = {}
    for name, tensor in load_file(shard).items():
        if name.endswith(ADAPTERS):
            continue
        stem, marked, _ = name.rpartition(BASE)
        low, high = (adapters.get(stem + suffix) for suffix in ADAPTERS)
        if marked and name.endswith(".weight") and low is not None and high is not None:
            tensor = (tensor.float() + scaling * (high.float() @ low.float())).to(tensor.dtype)
        merged[name.removeprefix(PREFIX).replace(BASE, ".")] = tensor.contiguous()
    new = shard.with_suffix(".merged")
    save_file(merged, new, metadata={"format": "pt"})
    return new


def _write_index(path: Path, shards: Iterable[Path]) -> None:
    index = json.loads(path.read_text(encoding="utf-8"))
    index["weight_map"] = {name: shard.name for shard in shards for name in _names(shard)}
    new = path.with_suffix(".tmp")
    new.write_text(json.dumps(index, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    os.replace(new, path)
