"""Hugging Face weights of a checkpoint: LoRA adapters are merged, and `config.json` names the dtype.

verl calls this through `merged_adapters` (engines/verl/upstream.py), EasyR1 through engines/easyr1/models.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recipes.files import write_json

LORA_PREFIX = "base_model.model."
BASE = ".base_layer."
FSDP1 = "_fsdp_wrapped_module."
"""Part that FSDP1 adds to the names of modules."""
ADAPTERS = (".lora_A.default.weight", ".lora_B.default.weight")
TYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16", "F64": "float64"}
"""Names of types in a safetensors file, and in a configuration."""


def scalings(model: Any) -> dict[str, float]:
    """Name of each map that a peft model adapts -> factor of its adapter, as peft has it: alpha / r, and variants."""
    from peft.tuners.lora import LoraLayer

    maps = ((name, module) for name, module in model.named_modules() if isinstance(module, LoraLayer))
    return {name.replace(FSDP1, ""): module.scaling["default"] for name, module in maps}


def with_adapters(tensors: dict[str, Any], factors: Mapping[str, float], device: Any = None) -> dict[str, Any]:
    """The tensors of a whole peft model, by the plain model's names, with the adapters in the weights.

    Each weight W becomes W + factor B A, in its own type.

    Args:
        tensors: emptied here, so that no weight is in memory twice.
        factors: of the maps, by their names in the peft model.
        device: computes; None: where the tensors are.

    Raises:
        ValueError: a part of an adapter that is not A and B of a linear map; the plain model would lack it.
    """
    import torch

    adapters = {name: tensors.pop(name) for name in list(tensors) if name.endswith(ADAPTERS)}
    merged: dict[str, Any] = {}
    used: set[str] = set()
    for name in list(tensors):
        tensor = tensors.pop(name)
        stem, marked, _ = name.rpartition(BASE)
        low, high = (adapters.get(stem + suffix) for suffix in ADAPTERS)
        if marked and name.endswith(".weight") and low is not None and high is not None:
            base, low, high = (part.to(device=device, dtype=torch.float32) for part in (tensor, low, high))
            tensor = torch.addmm(base, high, low, alpha=factors[stem]).to(device=tensor.device, dtype=tensor.dtype)
            used |= {stem + suffix for suffix in ADAPTERS}
        merged[name.removeprefix(LORA_PREFIX).replace(BASE, ".")] = tensor.contiguous()
    if left := sorted(adapters.keys() - used) + [name for name in merged if ".lora_" in name]:
        raise ValueError(f"the saved model would lack a part of the adapters: {left[0]}")
    return merged


def name_the_type(folder: Path) -> None:
    """Rewrite `config.json` with the type of the tensors beside it, if there are any and they have one type."""
    from safetensors import safe_open

    types = set()
    for shard in folder.glob("*.safetensors"):
        with safe_open(shard, framework="pt") as file:
            types |= {TYPES.get(file.get_slice(name).get_dtype()) for name in file.keys()}  # noqa: SIM118
    if not types or not (folder / "config.json").is_file():
        return
    values = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if len(types) == 1 and None not in types:
        values["dtype"] = types.pop()
    values.pop("attn_implementation", None)  # of the run that saved the model, not of the model
    write_json(folder / "config.json", values)
