"""Why adapters are trained with FSDP2 on GPUs: what verl collects of them for vLLM under each FSDP."""

from __future__ import annotations

import pytest

from recipes.config import check, load
from recipes.errors import RecipeError

LORA = {"LORA_RANK": "8"}


@pytest.fixture
def one_rank(monkeypatch, tmp_path):
    import torch

    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("use_orig_params", [False, True])
def test_verl_collects_adapters_with_fsdp2_and_none_with_fsdp1(one_rank, use_orig_params):
    """Once FSDP1 gives as many, `adapters_spread` in config/gpus.py and its check can go."""
    import torch
    from peft import LoraConfig, TaskType, get_peft_model
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
    from transformers import AutoModelForCausalLM, Qwen2Config
    from verl.utils.fsdp_utils import collect_lora_params, get_fsdp_wrap_policy

    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1}
    config = Qwen2Config(num_hidden_layers=1, vocab_size=64, **sizes)
    adapters = LoraConfig(task_type=TaskType.CAUSAL_LM, r=2, target_modules="all-linear")
    found = {}
    for version in (1, 2):
        model = get_peft_model(AutoModelForCausalLM.from_config(config), adapters)
        if version == 1:
            policy = get_fsdp_wrap_policy(module=model, is_lora=True)
            model = FullyShardedDataParallel(
                model, auto_wrap_policy=policy, device_id=torch.device("cpu"), use_orig_params=use_orig_params
            )
        else:
            fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
        found[version] = collect_lora_params(model, layered_summon=False, base_sync_done=True)
    assert not found[1]
    assert found[2]


def test_adapters_are_spread_by_fsdp2_on_gpus_unless_the_user_says_otherwise():
    recipe = load("custom", environ=LORA, hardware="gpu")
    assert recipe.worker.actor.strategy == "fsdp2"
    assert load("custom", hardware="gpu").worker.actor.strategy == "fsdp"
    chosen = load("custom", arguments=["worker.actor.strategy=fsdp"], environ=LORA, hardware="gpu")
    with pytest.raises(RecipeError, match="strategy fsdp trains no adapters") as caught:
        check(chosen)
    assert "fsdp2" in caught.value.fix
