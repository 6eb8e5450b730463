"""Make `config.json` of a saved model say what is in the file beside it.

verl writes the trainer's float32 weights under a configuration that says bfloat16
(verl/utils/checkpoint/fsdp_checkpoint_manager.py:446), so transformers would round them when it loads the model, and an
evaluation would see another policy than the one that was trained. It also writes down the attention kernel that this
platform asked for.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from recipes.engines.saved_models import MergedModels

DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16", "F64": "float64"}
"""Names of types in a safetensors file, and in a configuration."""
OVERRIDDEN = ("attn_implementation",)
"""Keys that `settings.py` puts into the configuration for the run."""


class HonestModels(MergedModels):
    """Called by the trainer, in the driver, after each save."""

    def on_save(self, trainer: Any, global_step: int, checkpoint_dir: str, **kwargs: Any) -> None:
        super().on_save(trainer, global_step, checkpoint_dir, **kwargs)
        for config in Path(checkpoint_dir).glob("*/huggingface/config.json"):
            mend(config)


def mend(config: Path) -> None:
    """Rewrite one `config.json` with the type of the tensors in its folder, if there are any and they have one type."""
    shards = sorted(config.parent.glob("*.safetensors"))
    if not shards:
        return
    found = {DTYPES.get(tensor["dtype"]) for tensor in header(shards[0]).values()}
    values = json.loads(config.read_text(encoding="utf-8"))
    if len(found) == 1 and None not in found:
        values["dtype"] = found.pop()
    for key in OVERRIDDEN:
        values.pop(key, None)
    written = config.with_suffix(".tmp")
    written.write_text(json.dumps(values, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    os.replace(written, config)


def header(shard: Path) -> dict[str, dict[str, Any]]:
    """Name, type, shape and place of each tensor in a safetensors file."""
    with shard.open("rb") as file:
        entries = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    entries.pop("__metadata__", None)
    return entries
