"""A saved model says its own type and data type, and keeps its tokenizer's files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from recipes.engines.checkpoints import header, merge_adapters, name_the_type

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


def expected(tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    low, high = (tensors[f"{LAYER}.lora_{letter}.default.weight"] for letter in "AB")
    return tensors[f"{LAYER}.base_layer.weight"] + 3.0 * high @ low


def test_adapters_become_part_of_their_weights(folder: Path) -> None:
    tensors = wrapped()
    safetensors.save_file(tensors, folder / "model.safetensors")

    assert merge_adapters(folder)

    merged = safetensors.load_file(folder / "model.safetensors")
    assert set(merged) == {
        "model.norm.weight",
        "model.layers.0.mlp.up_proj.weight",
        "model.layers.0.mlp.up_proj.bias",
    }
    torch.testing.assert_close(merged["model.layers.0.mlp.up_proj.weight"], expected(tensors))
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]


def test_adapters_in_another_shard_are_found_and_the_index_follows(folder: Path) -> None:
    tensors = wrapped()
    adapters = {name: tensors.pop(name) for name in list(tensors) if "lora_" in name}
    safetensors.save_file({**adapters, "base_model.model.lm_head.weight": torch.ones(1, 3)}, folder / "b.safetensors")
    safetensors.save_file(tensors, folder / "a.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": {}}))

    assert merge_adapters(folder)

    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert index["weight_map"]["lm_head.weight"] == "b.safetensors"
    assert index["weight_map"]["model.layers.0.mlp.up_proj.weight"] == "a.safetensors"
    merged = safetensors.load_file(folder / "a.safetensors")["model.layers.0.mlp.up_proj.weight"]
    torch.testing.assert_close(merged, expected({**tensors, **adapters}))


def test_a_plain_model_is_left_alone_and_merging_twice_is_harmless(folder: Path) -> None:
    safetensors.save_file({"model.norm.weight": torch.ones(3)}, folder / "model.safetensors")
    before = (folder / "model.safetensors").stat().st_mtime_ns

    assert not merge_adapters(folder)
    assert (folder / "model.safetensors").stat().st_mtime_ns == before

    safetensors.save_file(wrapped(), folder / "model.safetensors")
    assert merge_adapters(folder)
    assert not merge_adapters(folder)


@pytest.mark.parametrize(("kind", "name"), [("float32", "float32"), ("bfloat16", "bfloat16"), ("float16", "float16")])
def test_the_configuration_names_the_type_of_the_weights(kind: str, name: str, folder: Path) -> None:
    safetensors.save_file({"w": torch.ones(2, dtype=getattr(torch, kind))}, folder / "model.safetensors")

    name_the_type(folder)

    assert json.loads((folder / "config.json").read_text()) == {"dtype": name, "a": 1}


def test_mixed_types_and_missing_weights_leave_the_type_as_it_is(folder: Path) -> None:
    name_the_type(folder)
    assert json.loads((folder / "config.json").read_text())["attn_implementation"] == "sdpa"

    mixed = {"a": torch.ones(2), "b": torch.ones(2, dtype=torch.bfloat16)}
    safetensors.save_file(mixed, folder / "model.safetensors")
    name_the_type(folder)
    assert json.loads((folder / "config.json").read_text()) == {"dtype": "bfloat16", "a": 1}


def test_a_header_is_read_without_the_tensors(folder: Path) -> None:
    safetensors.save_file({"w": torch.ones(2, 3)}, folder / "model.safetensors", metadata={"format": "pt"})

    assert {name: entry["shape"] for name, entry in header(folder / "model.safetensors").items()} == {"w": [2, 3]}
