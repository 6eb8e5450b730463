"""A saved model says its own type and data type, and keeps its tokenizer's files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from recipes.engines.checkpoints import merge_adapters, name_the_type

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")

LAYER = "base_model.model.model.layers.0.mlp.up_proj"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "actor" / "huggingface"
    made.mkdir(parents=True)
    (made / "config.json").write_text(json.dumps({"dtype": "bfloat16", "attn_implementation": "sdpa", "a": 1}))
    (made.parent / "lora_train_meta.json").write_text(json.dumps({"r": 2, "lora_alpha": 6, "task_type": "CAUSAL_LM"}))
    return made


def wrapped() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        "base_model.model.model.norm.weight": torch.ones(3),
        f"{LAYER}.base_layer.weight": torch.randn(4, 3, generator=generator),
        f"{LAYER}.base_layer.bias": torch.randn(4, generator=generator),
        f"{LAYER}.lora_A.default.weight": torch.randn(2, 3, generator=generator),
        f"{LAYER}.lora_B.default.weight": torch.randn(4, 2, generator=generator),
    }


def test_adapters_become_part_of_their_weights_in_any_shard_and_the_index_follows(folder: Path) -> None:
    tensors = wrapped()
    low, high = (tensors[f"{LAYER}.lora_{letter}.default.weight"] for letter in "AB")
    adapters = {name: tensors.pop(name) for name in list(tensors) if "lora_" in name}
    safetensors.save_file({**adapters, "base_model.model.lm_head.weight": torch.ones(1, 3)}, folder / "b.safetensors")
    safetensors.save_file(tensors, folder / "a.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": {}}))
    assert merge_adapters(folder)
    names = dict.fromkeys((f"model.{part}" for part in ("norm.weight", "layers.0.mlp.up_proj.weight")), "a.safetensors")
    names |= {"model.layers.0.mlp.up_proj.bias": "a.safetensors", "lm_head.weight": "b.safetensors"}
    assert json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"] == names
    merged = safetensors.load_file(folder / "a.safetensors")["model.layers.0.mlp.up_proj.weight"]
    torch.testing.assert_close(merged, tensors[f"{LAYER}.base_layer.weight"] + 6 / 2 * high @ low)


def test_a_plain_model_is_left_alone_and_merging_twice_is_harmless(folder: Path) -> None:
    safetensors.save_file({"model.norm.weight": torch.ones(3)}, folder / "model.safetensors")
    assert not merge_adapters(folder)
    safetensors.save_file(wrapped(), folder / "model.safetensors")
    assert merge_adapters(folder)
    assert not merge_adapters(folder)


@pytest.mark.parametrize("types", [("float32",), ("bfloat16",), ("float16",), ("float32", "bfloat16"), ()])
def test_the_configuration_names_the_one_type_of_the_weights(types: tuple[str, ...], folder: Path) -> None:
    if types:
        tensors = {name: torch.ones(2, dtype=getattr(torch, name)) for name in types}
        safetensors.save_file(tensors, folder / "model.safetensors")
    name_the_type(folder)
    named = {"dtype": types[0] if len(types) == 1 else "bfloat16", "a": 1}
    expected = named if types else {**named, "attn_implementation": "sdpa"}
    assert json.loads((folder / "config.json").read_text()) == expected
