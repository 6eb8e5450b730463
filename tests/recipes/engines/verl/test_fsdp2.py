"""verl's models under FSDP2 as they are trained on GPUs, with weights in float32 and passes in bf16."""

from __future__ import annotations

import pytest

from recipes.engines.verl import upstream

SIZES = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1}


def test_adapters_train_after_a_first_pass_without_them(one_rank):
    """Where old log-probabilities are left out, the reference's pass is the first; verl's backward pass then fails."""
    import torch
    from peft import LoraConfig, TaskType, get_peft_model
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy
    from transformers import AutoModelForCausalLM, Qwen2Config
    from verl.utils.fsdp_utils import apply_fsdp2
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

    from recipes.engines.verl.engine import RecipesEngine

    ids = torch.arange(8)[None]

    def gradients(kind) -> dict[str, torch.dtype]:
        model = AutoModelForCausalLM.from_config(Qwen2Config(num_hidden_layers=1, vocab_size=64, **SIZES))
        model.enable_input_require_grads()
        adapters = LoraConfig(task_type=TaskType.CAUSAL_LM, r=2, target_modules="all-linear")
        model = get_peft_model(model, adapters)
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        apply_fsdp2(model, {"mesh": init_device_mesh("cpu", (1,)), "mp_policy": policy}, {})
        engine = object.__new__(kind)
        engine.module = model
        with engine.disable_adapter(), torch.no_grad():
            model(ids)
        model(ids).logits.float().logsumexp(-1).mean().backward()
        return {name: weight.grad.dtype for name, weight in model.named_parameters() if weight.grad is not None}

    with pytest.raises(RuntimeError, match="gradient"):
        gradients(FSDPEngineWithLMHead)
    found = gradients(RecipesEngine)
    assert found
    assert all("lora_" in name for name in found)
    assert set(found.values()) == {torch.float32}


@pytest.mark.parametrize("adapters", [False, True])
def test_the_fused_head_of_an_untied_model_trains_under_fsdp2(monkeypatch, one_rank, adapters):
    """With verl's head in PyTorch, which reads the weight as the one in Triton does; as it is, verl's choice fails."""
    import torch
    from peft import LoraConfig, TaskType, get_peft_model
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy
    from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM
    from verl.models.transformers.monkey_patch import patch_forward_with_backends
    from verl.utils import fsdp_utils

    monkeypatch.setattr(Qwen2ForCausalLM, "forward", Qwen2ForCausalLM.forward)
    config = Qwen2Config(num_hidden_layers=1, vocab_size=64, tie_word_embeddings=False, **SIZES)
    ids = torch.arange(8)[None]

    def learn() -> torch.nn.Module:
        """Return a model after two passes, of which only the second spreads its gradients."""
        model = AutoModelForCausalLM.from_config(config)
        patch_forward_with_backends(model, use_fused_kernels=True, fused_kernels_backend="torch")
        if adapters:
            model.enable_input_require_grads()
            lora = LoraConfig(task_type=TaskType.CAUSAL_LM, r=2, target_modules="all-linear")
            model = get_peft_model(model, lora)
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        options = {"mesh": init_device_mesh("cpu", (1,)), "mp_policy": policy, "reshard_after_forward": True}
        fsdp_utils.apply_fsdp2(model, options, {})
        for last in (False, True):
            model.set_requires_gradient_sync(last)
            (-model(ids, return_dict=True).log_probs.mean()).backward()
        return model

    ordinary = upstream.original("verl.utils.fsdp_utils", "_select_fsdp2_wrap_targets")
    monkeypatch.setattr(fsdp_utils, "_select_fsdp2_wrap_targets", ordinary)
    with pytest.raises(RuntimeError, match="DTensor"):
        learn()
    upstream.head_in_root.__wrapped__()
    learnt = {name for name, weight in learn().named_parameters() if weight.grad is not None}
    assert "lm_head.weight" in learnt or adapters
    assert learnt
    assert all("lora_" in name for name in learnt) is adapters
