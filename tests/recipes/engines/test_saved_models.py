"""Adapters become part of the weights that a run saves."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from recipes.engines import saved_models

WRAPPED = "base_model.model.model.layers.0.mlp.up_proj"
LAYER = "model.layers.0.mlp.up_proj"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_adapters_become_part_of_their_weights_in_the_type_of_the_weights(dtype):
    base, low, high = torch.randn(4, 3).to(dtype), torch.randn(2, 3), torch.randn(4, 2)
    tensors = {
        f"{WRAPPED}.lora_A.default.weight": low,
        f"{WRAPPED}.base_layer.weight": base,
        f"{WRAPPED}.base_layer.bias": torch.ones(4),
        f"{WRAPPED}.lora_B.default.weight": high,
        "base_model.model.lm_head.weight": torch.ones(1, 3),
    }
    merged = saved_models.with_adapters(tensors, 6 / 2)
    assert set(merged) == {f"{LAYER}.weight", f"{LAYER}.bias", "lm_head.weight"}
    assert not tensors, "no weight is held twice"
    expected = (base.double() + 6 / 2 * high.double() @ low.double()).to(dtype)
    torch.testing.assert_close(merged[f"{LAYER}.weight"], expected)


@pytest.mark.parametrize("adapters", [None, {"default": SimpleNamespace(r=2, lora_alpha=6)}])
def test_verl_gathers_a_plain_model_to_save_whether_or_not_it_has_adapters(monkeypatch, adapters):
    from verl.utils.checkpoint import fsdp_checkpoint_manager

    gathered = {"base_model.model.lm_head.weight": torch.ones(1, 3)} if adapters else {"lm_head.weight": torch.ones(1)}
    monkeypatch.setattr(fsdp_checkpoint_manager, "get_fsdp_full_state_dict", lambda model, **options: dict(gathered))
    saved_models.register.__wrapped__()
    model = torch.nn.Linear(1, 1)
    if adapters:
        model.peft_config = adapters
    assert list(fsdp_checkpoint_manager.get_fsdp_full_state_dict(model, rank0_only=True)) == ["lm_head.weight"]
