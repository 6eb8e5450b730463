"""The models beside a checkpoint: adapters merged into their weights, and the type of the weights named."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from recipes.files import write_json

LORA_PREFIX = "base_model.model."
BASE = ".base_layer."
ADAPTERS = (".lora_A.default.weight", ".lora_B.default.weight")
INDEX = "model.safetensors.index.json"
TYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16", "F64": "float64"}
"""Names of types in a safetensors file, and in a configuration."""


def merge_adapters(folder: Path) -> bool:
    """Merge LoRA adapters, if the model in this folder has any, into the weights that they belong to.

    Each weight W becomes W + (alpha / r) B A, in its own type; alpha and r are in `lora_train_meta.json` above.

    Returns:
        Whether there was something to merge. Files are replaced only after all new ones are written.
    """
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    shards, wrapped = sorted(folder.glob("*.safetensors")), False
    adapters: dict[str, Any] = {}
    for shard in shards:
        with safe_open(shard, framework="pt") as file:
            names = list(file.keys())
            wrapped = wrapped or any(name.startswith(LORA_PREFIX) for name in names)
            adapters |= {name: file.get_tensor(name) for name in names if name.endswith(ADAPTERS)}
    if not wrapped:
        return False
    meta = json.loads((folder.parent / "lora_train_meta.json").read_text(encoding="utf-8"))
    weight_map: dict[str, str] = {}
    for shard in shards:
        merged = _merged(load_file(shard), adapters, meta["lora_alpha"] / meta["r"])
        weight_map |= dict.fromkeys(merged, shard.name)
        save_file(merged, shard.with_suffix(".merged"), metadata={"format": "pt"})
    for shard in shards:
        os.replace(shard.with_suffix(".merged"), shard)
    if (folder / INDEX).is_file():
        index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        write_json(folder / INDEX, {**index, "weight_map": weight_map})
    return True


def with_adapters(tensors: dict[str, Any], scaling: float) -> dict[str, Any]:
    """The tensors of a whole peft model, by the plain model's names, with the adapters in the weights."""
    return _merged(tensors, {name: value for name, value in tensors.items() if name.endswith(ADAPTERS)}, scaling)


def _merged(tensors: dict[str, Any], adapters: dict[str, Any], scaling: float) -> dict[str, Any]:
    """The tensors of a shard without the names and the adapters of peft."""
    merged = {}
    for name, tensor in tensors.items():
        if name.endswith(ADAPTERS):
            continue
        stem, marked, _ = name.rpartition(BASE)
        low, high = (adapters.get(stem + suffix) for suffix in ADAPTERS)
        if marked and name.endswith(".weight") and low is not None and high is not None:
            tensor = (tensor.float() + scaling * (high.float() @ low.float())).to(tensor.dtype)
        merged[name.removeprefix(LORA_PREFIX).replace(BASE, ".")] = tensor.contiguous()
    return merged


def name_the_type(folder: Path) -> None:
    """Rewrite `config.json` with the type of the tensors beside it, if there are any and they have one type."""
    from safetensors import safe_open

    shard = next(iter(sorted(folder.glob("*.safetensors"))), None)
    if shard is None or not (folder / "config.json").is_file():
        return
    with safe_open(shard, framework="pt") as file:
        types = {TYPES.get(file.get_slice(name).get_dtype()) for name in file.keys()}  # noqa: SIM118
    values = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if len(types) == 1 and None not in types:
        values["dtype"] = types.pop()
    values.pop("attn_implementation", None)  # of the run that saved the model, not of the model
    write_json(folder / "config.json", values)
