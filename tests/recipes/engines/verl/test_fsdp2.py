"""verl's models under FSDP2 as they are trained on GPUs: trained weights in float32, others and passes in bf16."""

import inspect

import pytest
import torch
from peft import LoraConfig, TaskType, get_peft_model
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM
from verl.models.transformers.monkey_patch import patch_forward_with_backends
from verl.utils import fsdp_utils
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

from recipes.engines.verl import upstream

IDS = torch.arange(8)[None]
SIZES = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1}


def sharded(adapters: bool, fused_head: bool = False) -> torch.nn.Module:
    """A tiny model with a head of its own, on one rank."""
    config = Qwen2Config(num_hidden_layers=1, vocab_size=64, tie_word_embeddings=False, **SIZES)
    model = AutoModelForCausalLM.from_config(config)
    if fused_head:
        patch_forward_with_backends(model, use_fused_kernels=True, fused_kernels_backend="torch")
    if adapters:
        model.enable_input_require_grads()
        model = get_peft_model(model, LoraConfig(task_type=TaskType.CAUSAL_LM, r=2, target_modules="all-linear"))
        for weight in model.parameters():
            weight.data = weight.data if weight.requires_grad else weight.data.to(torch.bfloat16)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    options = {"mesh": init_device_mesh("cpu", (1,)), "mp_policy": policy, "reshard_after_forward": True}
    fsdp_utils.apply_fsdp2(model, options, {})
    return model


def gradients(model: torch.nn.Module) -> dict[str, torch.dtype]:
    return {name: weight.grad.dtype for name, weight in model.named_parameters() if weight.grad is not None}


@pytest.mark.usefixtures("one_rank")
def test_adapters_train_after_a_first_pass_without_them():
    """Where old log-probabilities are left out, the reference's pass is the first; verl's backward pass then fails."""
    from recipes.engines.verl.engine import RecipesEngine

    def learnt(kind: type) -> dict[str, torch.dtype]:
        engine = object.__new__(kind)
        engine.module = sharded(adapters=True)
        with engine.disable_adapter(), torch.no_grad():
            engine.module(IDS)
        engine.module(IDS).logits.float().logsumexp(-1).mean().backward()
        return gradients(engine.module)

    with pytest.raises(RuntimeError, match="gradient"):
        learnt(FSDPEngineWithLMHead)
    found = learnt(RecipesEngine)
    assert found
    assert all("lora_" in name for name in found)
    assert set(found.values()) == {torch.float32}


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("adapters", [False, True])
def test_the_fused_head_of_an_untied_model_trains_under_fsdp2(monkeypatch, adapters):
    """With verl's head in PyTorch, which reads the weight as the one in Triton does; as it is, verl's choice fails."""
    monkeypatch.setattr(Qwen2ForCausalLM, "forward", Qwen2ForCausalLM.forward)

    def learnt() -> dict[str, torch.dtype]:
        """The gradients after two passes, of which only the second spreads them."""
        model = sharded(adapters, fused_head=True)
        for last in (False, True):
            model.set_requires_gradient_sync(last)
            (-model(IDS, return_dict=True).log_probs.mean()).backward()
        return gradients(model)

    ordinary = inspect.unwrap(fsdp_utils._select_fsdp2_wrap_targets)
    monkeypatch.setattr(fsdp_utils, "_select_fsdp2_wrap_targets", ordinary)
    with pytest.raises(RuntimeError, match="DTensor"):
        learnt()
    upstream.head_in_root.__wrapped__()
    found = learnt()
    assert found
    assert "lm_head.weight" in found or adapters
    assert all("lora_" in name for name in found) is adapters
