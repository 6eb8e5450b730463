"""Adapters become part of the weights that a run saves."""

from __future__ import annotations

import json

import pytest
import torch

from recipes.engines import saved_models

WRAPPED = "base_model.model.model.layers.0.mlp.up_proj"
LAYER = "model.layers.0.mlp.up_proj"


def test_adapters_become_part_of_their_weights_in_the_type_of_the_weights():
    base, low, high = torch.randn(4, 3).bfloat16(), torch.randn(2, 3), torch.randn(4, 2)
    tensors = {
        f"{WRAPPED}.lora_A.default.weight": low,
        f"{WRAPPED}.base_layer.weight": base,
        f"{WRAPPED}.lora_B.default.weight": high,
        "base_model.model.lm_head.weight": torch.ones(1, 3),
    }
    merged = saved_models.with_adapters(tensors, {WRAPPED: 6 / 2})
    assert set(merged) == {f"{LAYER}.weight", "lm_head.weight"}
    assert not tensors, "no weight is held twice"
    expected = (base.double() + 6 / 2 * high.double() @ low.double()).bfloat16()
    torch.testing.assert_close(merged[f"{LAYER}.weight"], expected)


@pytest.mark.parametrize(
    "variant", [{}, {"use_rslora": True}, {"rank_pattern": {"q_proj": 2}, "alpha_pattern": {"k_proj": 32}}]
)
def test_the_saved_model_answers_as_the_one_with_adapters(variant):
    from peft import LoraConfig, get_peft_model
    from transformers import Qwen2Config, Qwen2ForCausalLM

    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1}
    config = Qwen2Config(num_hidden_layers=1, vocab_size=64, **sizes)

    def adapted(**options):
        settings = LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=8, **options)
        model = get_peft_model(Qwen2ForCausalLM(config), settings).eval()
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if "lora_" in name:
                    weight.normal_()
        return model

    def plain_weights(model):
        return saved_models.with_adapters(dict(model.state_dict()), saved_models.scalings(model))

    ids, model, plain = torch.arange(8)[None], adapted(target_modules="all-linear", **variant), Qwen2ForCausalLM(config)
    plain.load_state_dict(plain_weights(model))
    torch.testing.assert_close(plain.eval()(ids).logits, model(ids).logits, atol=1e-4, rtol=1e-4)
    for others in ({"target_modules": ["q_proj"], "use_dora": True}, {"target_modules": ["embed_tokens"]}):
        with pytest.raises(ValueError, match="lora_"):
            plain_weights(adapted(**others))


def test_a_type_is_named_where_all_files_have_it(tmp_path):
    from safetensors.torch import save_file

    (tmp_path / "config.json").write_text('{"dtype": "float32"}')
    save_file({"a": torch.ones(1, dtype=torch.bfloat16)}, tmp_path / "model-00001-of-00002.safetensors")
    save_file({"b": torch.ones(1)}, tmp_path / "model-00002-of-00002.safetensors")
    saved_models.name_the_type(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text()) == {"dtype": "float32"}
