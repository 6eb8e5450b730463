"""Adapters become part of the weights that a run saves."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from recipes.engines.saved_models import merge_adapters

WRAPPED = "base_model.model.model.layers.0.mlp.up_proj"
LAYER = "model.layers.0.mlp.up_proj"


def test_adapters_become_part_of_their_weights_in_any_shard_and_the_index_follows(tmp_path: Path) -> None:
    """The trainer's own test merges a model of one shard."""
    folder = tmp_path / "actor" / "huggingface"
    folder.mkdir(parents=True)
    meta = {"r": 2, "lora_alpha": 6, "task_type": "CAUSAL_LM"}
    (folder.parent / "lora_train_meta.json").write_text(json.dumps(meta))
    base, low, high = torch.randn(4, 3), torch.randn(2, 3), torch.randn(4, 2)
    adapters = {f"{WRAPPED}.lora_A.default.weight": low, f"{WRAPPED}.lora_B.default.weight": high}
    save_file({**adapters, "base_model.model.lm_head.weight": torch.ones(1, 3)}, folder / "b.safetensors")
    save_file({f"{WRAPPED}.base_layer.weight": base}, folder / "a.safetensors")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": {}}))
    assert merge_adapters(folder)
    names = {f"{LAYER}.weight": "a.safetensors", "lm_head.weight": "b.safetensors"}
    assert json.loads(index.read_text())["weight_map"] == names
    torch.testing.assert_close(load_file(folder / "a.safetensors")[f"{LAYER}.weight"], base + 6 / 2 * high @ low)
