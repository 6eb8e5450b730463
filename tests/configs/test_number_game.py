"""The number game's recipe: every value that it promises, in both engines' words, and its launcher's commands."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from recipes.config import accounting, check, load
from recipes.config.official import examples
from recipes.engines import easyr1, verl
from recipes.paths import CONFIGS, ROOT
from recipes.tasks.number_game.rules import PRESETS

LAUNCHER = "examples/number_game_agent/qwen2_5_vl_3b_numgame_grpo.sh"
SCREENSHOTS = PRESETS["full"].train_size

PROMISED = {
    "data.max_prompt_length": 1024,
    "data.max_response_length": 128,
    "data.rollout_batch_size": 128,
    "data.val_batch_size": 256,
    "data.seed": 1,
    "data.min_pixels": 262144,
    "data.max_pixels": 4194304,
    "data.filter_overlong_prompts": True,
    "algorithm.adv_estimator": "grpo",
    "algorithm.disable_kl": False,
    "algorithm.use_kl_loss": True,
    "algorithm.kl_penalty": "low_var_kl",
    "algorithm.kl_coef": 1e-2,
    "algorithm.online_filtering": False,
    "worker.actor.global_batch_size": 64,
    "worker.actor.micro_batch_size_per_device_for_update": 1,
    "worker.actor.micro_batch_size_per_device_for_experience": 2,
    "worker.actor.max_grad_norm": 1.0,
    "worker.actor.padding_free": True,
    "worker.actor.dynamic_batching": True,
    "worker.actor.ulysses_size": 1,
    "worker.actor.model.model_path": "Qwen/Qwen2.5-VL-3B-Instruct",
    "worker.actor.optim.lr": 1e-6,
    "worker.actor.optim.weight_decay": 1e-2,
    "worker.actor.optim.strategy": "adamw",
    "worker.actor.optim.lr_warmup_ratio": 0.0,
    "worker.actor.fsdp.enable_full_shard": True,
    "worker.actor.fsdp.enable_cpu_offload": False,
    "worker.actor.fsdp.enable_rank0_init": True,
    "worker.actor.offload.offload_params": True,
    "worker.actor.offload.offload_optimizer": True,
    "worker.rollout.n": 5,
    "worker.rollout.temperature": 1.0,
    "worker.rollout.top_p": 1.0,
    "worker.rollout.limit_images": 1,
    "worker.rollout.gpu_memory_utilization": 0.6,
    "worker.rollout.tensor_parallel_size": 1,
    "worker.rollout.val_override_config.temperature": 0.6,
    "worker.rollout.val_override_config.top_p": 0.95,
    "worker.rollout.val_override_config.n": 1,
    "trainer.total_epochs": 15,
    "trainer.max_steps": None,
    "trainer.nnodes": 1,
    "trainer.n_gpus_per_node": 2,
    "trainer.max_try_make_batch": 20,
    "trainer.val_freq": 5,
    "trainer.val_before_train": True,
    "trainer.val_generations_to_log": 3,
    "trainer.save_freq": 5,
    "trainer.save_limit": 3,
    "trainer.find_last_checkpoint": True,
}

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
VERLS = {
    "data.train_batch_size": 128,
    "data.val_batch_size": 256,
    "data.mm_processor_kwargs.min_pixels": 262144,
    "data.mm_processor_kwargs.max_pixels": 4194304,
    "algorithm.use_kl_in_reward": False,
    f"{ACTOR}.use_kl_loss": True,
    f"{ACTOR}.kl_loss_type": "low_var_kl",
    f"{ACTOR}.kl_loss_coef": 0.01,
    f"{ACTOR}.ppo_mini_batch_size": 64,
    f"{ACTOR}.use_dynamic_bsz": True,
    f"{ACTOR}.fsdp_config.param_offload": True,
    f"{ACTOR}.fsdp_config.optimizer_offload": True,
    f"{ROLLOUT}.limit_images": 1,
    f"{ROLLOUT}.max_model_len": 1152,
    f"{ROLLOUT}.load_format": "safetensors",
    f"{ROLLOUT}.val_kwargs.do_sample": True,
    "trainer.test_freq": 5,
    "trainer.save_freq": 5,
    "trainer.n_gpus_per_node": 2,
}


def flat(tree: dict, prefix: str = "") -> dict[str, object]:
    """Dotted keys of nested mappings."""
    found: dict[str, object] = {}
    for name, value in tree.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return found


def recipe(engine: str = "verl"):
    return load("number_game", environ={"ENGINE": engine}, hardware="gpu")


@pytest.mark.parametrize("key", PROMISED)
def test_each_promised_value_stands_in_the_file_and_survives_the_layers(key):
    written = flat(yaml.safe_load((CONFIGS / "number_game.yaml").read_text(encoding="utf-8")))
    assert key in written, f"{key} is left to a default"
    assert written[key] == PROMISED[key]
    assert recipe().value(key) == PROMISED[key]


def test_verl_gets_them_in_its_own_keys():
    keys = verl.translate(recipe())
    assert {key: keys[key] for key in VERLS} == VERLS


def test_easyr1_gets_them_unchanged():
    keys = flat(easyr1.translate(recipe("easyr1")))
    assert {key: keys[key] for key in PROMISED} == PROMISED
    assert keys["data.prompt_key"] == "problem"
    assert keys["data.image_key"] == "images"
    assert keys["worker.reward.reward_function"].endswith("reward_functions/number_game.py:compute_score_batch")


COMMANDS = {
    "MAX_STEPS=1": ((128, 640, 2, 160), 9, 1),
    "TOTAL_EPOCHS=15": ((128, 640, 2, 160), 9, 135),
    "MODEL_PATH=/path/to/Qwen2.5-VL-7B-Instruct GPUS_PER_NODE=4 TENSOR_PARALLEL_SIZE=2 "
    "ROLLOUT_BATCH_SIZE=256 GLOBAL_BATCH_SIZE=128": ((256, 1280, 2, 160), 4, 60),
    "ROLLOUT_BATCH_SIZE=64 GLOBAL_BATCH_SIZE=32 GPU_MEMORY_UTIL=0.4": ((64, 320, 2, 80), 18, 270),
}


@pytest.mark.parametrize("variables", COMMANDS)
@pytest.mark.parametrize("engine", ["verl", "easyr1"])
def test_the_documented_commands_divide_evenly(variables, engine):
    environ = dict(word.split("=", 1) for word in variables.split())
    loaded = load("number_game", environ={**environ, "ENGINE": engine}, hardware="gpu")
    check(loaded)
    counted = accounting(loaded, SCREENSHOTS)
    numbers, epoch, total = COMMANDS[variables]
    assert (counted.prompts, counted.responses, counted.updates, counted.responses_per_gpu) == numbers
    assert (counted.steps_per_epoch, counted.total_steps) == (epoch, total)


def test_the_launcher_passes_its_variables_on(tmp_path):
    """The third documented command, as written, through bash."""
    given = next(variables for variables in COMMANDS if "MODEL_PATH" in variables)
    environ = {**os.environ, **dict(word.split("=", 1) for word in given.split())}
    environ |= {"DRY_RUN": "1", "HARDWARE": "gpu", "ARTIFACTS_DIR": str(tmp_path), "GPU_MEMORY_UTIL": "0.4"}
    environ["PATH"] = f"{Path(sys.executable).parent}:{environ['PATH']}"
    done = subprocess.run(["bash", LAUNCHER], cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 2  # the plan is shown all the same
    assert "the model /path/to/Qwen2.5-VL-7B-Instruct does not exist" in done.stderr
    said = (
        "actor_rollout_ref.model.path=/path/to/Qwen2.5-VL-7B-Instruct",
        "actor_rollout_ref.rollout.gpu_memory_utilization=0.4",
        "data.train_batch_size=256",
        "actor_rollout_ref.actor.ppo_mini_batch_size=128",
        "trainer.n_gpus_per_node=4",
    )
    for words in said:
        assert f"{words} " in done.stdout
    assert "\n    tensor_parallel_size: 2" in done.stdout, "verl's default, so only the resolved YAML says it"
    assert "# responses per step: 1,280" in done.stdout


def test_facts_that_common_notes_get_wrong():
    """EasyR1's 3B example runs on 2 GPUs, not 8; and its frequencies are steps, as ours are."""
    three, seven = examples(["easyr1:3b", "easyr1:7b"])
    assert (three.values["trainer.n_gpus_per_node"], seven.values["trainer.n_gpus_per_node"]) == (2, 8)
    table = (ROOT / "docs/COMPARISON.md").read_text(encoding="utf-8")
    assert "| `trainer.n_gpus_per_node` | `2` | `2` | `8` |" in table
    assert "`val_freq` and `save_freq` count steps" in table
