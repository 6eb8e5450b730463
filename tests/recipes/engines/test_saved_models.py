"""A checkpoint for others and for a resumed run: the whole model with its adapters, and the command's optimiser."""

import json
from types import SimpleNamespace

import pytest
import torch
from peft import LoraConfig, TaskType, get_peft_model
from torch.optim.lr_scheduler import LambdaLR
from transformers import Qwen2Config, Qwen2ForCausalLM

from recipes.engines import checkpoints
from recipes.paths import ROOT

SIZES = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1}
CONFIG = Qwen2Config(num_hidden_layers=1, vocab_size=64, **SIZES)


def adapted(**options):
    """A tiny model with adapters that are not zero."""
    given = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear", **options}
    model = get_peft_model(Qwen2ForCausalLM(CONFIG), LoraConfig(task_type=TaskType.CAUSAL_LM, **given)).eval()
    with torch.no_grad():
        for weight in (weight for name, weight in model.named_parameters() if "lora_" in name):
            weight.normal_()
    return model


def plain_weights(model):
    return checkpoints.with_adapters(dict(model.state_dict()), checkpoints.scalings(model))


@pytest.mark.parametrize(
    "variant", [{}, {"use_rslora": True}, {"rank_pattern": {"q_proj": 2}, "alpha_pattern": {"k_proj": 32}}]
)
def test_the_saved_model_answers_as_the_one_with_adapters(variant):
    ids, model, plain = torch.arange(8)[None], adapted(**variant), Qwen2ForCausalLM(CONFIG)
    plain.load_state_dict(plain_weights(model))
    torch.testing.assert_close(plain.eval()(ids).logits, model(ids).logits, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("other", [{"use_dora": True}, {"target_modules": ["embed_tokens"]}])
def test_adapters_that_no_weight_can_hold_are_an_error(other):
    with pytest.raises(ValueError, match="lora_"):
        plain_weights(adapted(**other))


def test_a_run_resumes_from_the_models_folder_and_its_adapters(one_rank, tmp_path):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from transformers import AutoTokenizer
    from verl.trainer.config import CheckpointConfig
    from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager

    contents = {"save_contents": ["model"], "load_contents": ["model"], "save_lora_only": True}

    def manager(model):
        tokenizer = AutoTokenizer.from_pretrained(ROOT / "recipes/tasks/countdown/tiny")
        fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
        return FSDPCheckpointManager(model, processing_class=tokenizer, checkpoint_config=CheckpointConfig(**contents))

    trained, resumed = adapted(), adapted()
    begun = {name: weight for name, weight in trained.state_dict().items() if "lora_" not in name}
    resumed.load_state_dict(begun, strict=False)
    manager(trained).save_checkpoint(str(tmp_path / "actor"))
    manager(resumed).load_checkpoint(str(tmp_path / "actor"))
    files = torch.load(tmp_path / "actor/model_world_size_1_rank_0.pt", weights_only=False)
    assert all("lora_" in name for name in files)
    expected = trained.state_dict()
    for name, weight in resumed.state_dict().items():
        assert torch.equal(weight.to_local(), expected[name].to_local()), name


def test_a_type_is_named_where_all_files_have_it(tmp_path):
    from safetensors.torch import save_file

    (tmp_path / "config.json").write_text('{"dtype": "float32"}')
    save_file({"a": torch.ones(1, dtype=torch.bfloat16)}, tmp_path / "model-00001-of-00002.safetensors")
    save_file({"b": torch.ones(1)}, tmp_path / "model-00002-of-00002.safetensors")
    checkpoints.name_the_type(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text()) == {"dtype": "float32"}


def trained(lr: float, steps: int):
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([weight], lr=lr, betas=(0.9, 0.999), weight_decay=0.01)
    schedule = LambdaLR(optimizer, lambda step: 1 - step / 10)
    for _ in range(steps):
        weight.sum().backward()
        optimizer.step()
        schedule.step()
    return optimizer, schedule


@pytest.mark.parametrize("with_schedule", [True, False])
def test_the_commands_values_hold_after_a_load(with_schedule):
    saved, saved_schedule = trained(1e-3, 4)
    optimizer, schedule = trained(5e-3, 0)
    optimizer.load_state_dict(saved.state_dict())
    if with_schedule:
        schedule.load_state_dict(saved_schedule.state_dict())
    config = SimpleNamespace(lr=5e-3, betas=[0.8, 0.9], weight_decay=0.2)
    step = None if with_schedule else checkpoints.step_of("/somewhere/from_global_step_9/global_step_4/actor")
    checkpoints.set_again(config, optimizer, schedule, rank=0, step=step)
    (group,) = optimizer.param_groups
    assert group["lr"] == pytest.approx(5e-3 * 0.6)
    assert (group["betas"], group["weight_decay"]) == ((0.8, 0.9), 0.2)
    assert optimizer.state[group["params"][0]]["step"] == 4
    schedule.step()
    assert schedule.get_last_lr() == [pytest.approx(5e-3 * 0.5)]
