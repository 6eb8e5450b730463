"""verl's fused head: the flags that keep Triton from compiling it for each kind of number, and its weight on FSDP2."""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace

import pytest

from recipes.engines import fused_head


def compiled(names: list[str]) -> SimpleNamespace:
    """What Triton's autotuner holds of a function with these arguments."""
    flags = {"do_not_specialize": False, "do_not_specialize_on_alignment": False}
    return SimpleNamespace(fn=SimpleNamespace(params=[SimpleNamespace(name=name, **flags) for name in names]))


def test_values_of_the_named_arguments_are_not_distinguished():
    kernels = pytest.importorskip("verl.utils.kernel.kernels")
    source = ast.parse(Path(kernels.__file__).read_text())  # without Triton the decorators leave no function behind
    names = {
        function.name: [argument.arg for argument in function.args.args]
        for function in source.body
        if isinstance(function, ast.FunctionDef)
    }
    stand_in = SimpleNamespace(**{name: compiled(names[name]) for name in fused_head.KERNELS})
    fused_head.compile_once(stand_in)
    of_values, of_addresses = set(), set()
    for name in fused_head.KERNELS:
        for parameter in getattr(stand_in, name).fn.params:
            of_values |= {parameter.name} if parameter.do_not_specialize else set()
            of_addresses |= {parameter.name} if parameter.do_not_specialize_on_alignment else set()
    assert of_values == set(fused_head.ANY_VALUE), "verl's kernels have an argument of each of these names"
    assert of_addresses == set(fused_head.ANY_ADDRESS)


@pytest.mark.parametrize("fused", [True, False])
def test_it_is_told_before_a_model_with_fused_kernels_is_built(monkeypatch, fused):
    from verl.utils import fsdp_utils
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngine

    order: list[str] = []
    monkeypatch.setattr(fsdp_utils, "_select_fsdp2_wrap_targets", fsdp_utils._select_fsdp2_wrap_targets)
    monkeypatch.setattr(FSDPEngine, "_build_module", lambda self: order.append("built"))
    monkeypatch.setattr(fused_head, "compile_once", lambda kernels: order.append(kernels.__name__))
    fused_head.register.__wrapped__()
    FSDPEngine._build_module(SimpleNamespace(model_config=SimpleNamespace(use_fused_kernels=fused)))
    assert order == (["verl.utils.kernel.kernels"] if fused else []) + ["built"]


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
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1}
    config = Qwen2Config(num_hidden_layers=1, vocab_size=64, tie_word_embeddings=False, **sizes)
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

    ordinary = fsdp_utils._select_fsdp2_wrap_targets
    ordinary = getattr(ordinary, "__wrapped__", ordinary)  # verl's own, also after `register` in this process
    monkeypatch.setattr(fsdp_utils, "_select_fsdp2_wrap_targets", ordinary)
    with pytest.raises(RuntimeError, match="DTensor"):
        learn()
    monkeypatch.setattr(fsdp_utils, "_select_fsdp2_wrap_targets", fused_head.head_in_root(ordinary))
    learnt = {name for name, weight in learn().named_parameters() if weight.grad is not None}
    assert "lm_head.weight" in learnt or adapters
    assert learnt
    assert all("lora_" in name for name in learnt) is adapters
