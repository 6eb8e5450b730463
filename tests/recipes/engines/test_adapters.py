"""Adapters under verl's FSDP: what is collected of them for vLLM, and what a run resumes from."""

from __future__ import annotations

import pytest

from recipes import paths
from recipes.config import check, load
from recipes.engines.verl import translation as verl
from recipes.errors import RecipeError

LORA = {"LORA_RANK": "8"}


def with_adapters():
    """A tiny model with adapters of rank 2."""
    from peft import LoraConfig, TaskType, get_peft_model
    from transformers import AutoModelForCausalLM, Qwen2Config

    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1}
    config = Qwen2Config(num_hidden_layers=1, vocab_size=64, **sizes)
    adapters = LoraConfig(task_type=TaskType.CAUSAL_LM, r=2, target_modules="all-linear")
    return get_peft_model(AutoModelForCausalLM.from_config(config), adapters)


def test_adapters_are_spread_by_fsdp2_on_gpus_unless_the_user_says_otherwise():
    recipe = load("custom", environ=LORA, hardware="gpu")
    assert recipe.worker.actor.strategy == "fsdp2"
    assert load("custom", hardware="gpu").worker.actor.strategy == "fsdp"
    chosen = load("custom", arguments=["worker.actor.strategy=fsdp"], environ=LORA, hardware="gpu")
    with pytest.raises(RecipeError) as caught:
        check(chosen)
    assert "fsdp2" in caught.value.fix


def test_a_run_resumes_from_the_models_folder_and_its_adapters(one_rank, tmp_path):
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from transformers import AutoTokenizer
    from verl.trainer.config import CheckpointConfig
    from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager

    contents = {"save_contents": ["model"], "load_contents": ["model"], "save_lora_only": True}

    def manager(model):
        tokenizer = AutoTokenizer.from_pretrained(paths.ROOT / "recipes/tasks/countdown/tiny")
        fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
        return FSDPCheckpointManager(model, processing_class=tokenizer, checkpoint_config=CheckpointConfig(**contents))

    trained = with_adapters()
    begun = {name: weight.clone() for name, weight in trained.state_dict().items()}
    saving = manager(trained)
    with torch.no_grad():
        for name, weight in trained.named_parameters():
            if "lora_" in name:
                weight.add_(1.0)
    saving.save_checkpoint(str(tmp_path / "actor"))
    resumed = with_adapters()
    resumed.load_state_dict({name: torch.zeros_like(w) if "lora_" in name else w for name, w in begun.items()})
    manager(resumed).load_checkpoint(str(tmp_path / "actor"))
    files = torch.load(tmp_path / "actor/model_world_size_1_rank_0.pt", weights_only=False)
    assert all("lora_" in name for name in files)
    expected = trained.state_dict()
    assert not all(torch.equal(expected[name].to_local(), begun[name]) for name in begun)
    for name, weight in resumed.state_dict().items():
        assert torch.equal(weight.to_local(), expected[name].to_local()), name


def test_shards_are_whole_where_no_whole_model_is_saved_beside_them():
    """verl's own tool merges them then; it makes no model of adapters alone."""
    key = "+actor_rollout_ref.actor.checkpoint.save_lora_only=true"
    assert key in verl.overrides(load("custom", environ=LORA, hardware="gpu"))
    alone = load("custom", arguments=["trainer.save_hf_model=false"], environ=LORA, hardware="gpu")
    assert key not in verl.overrides(alone)
    assert key not in verl.overrides(load("custom", environ={}, hardware="gpu"))
