"""Commands, keys and files as users type them who come from notes on these five systems, each as a dry run."""

from __future__ import annotations

import importlib.util
import json

import pytest

from recipes.config import load
from recipes.engines.support import require_supported
from recipes.errors import RecipeError
from recipes.paths import ROOT

# task: what is typed -> a key and the value that it must have afterwards
TYPED = """
countdown: data.train_batch_size=64 actor.ppo_mini_batch_size=64 -> worker.actor.global_batch_size 64
countdown: ppo_micro_batch_size_per_gpu=4 -> worker.actor.micro_batch_size_per_device_for_update 4
countdown: rollout.n=16 rollout.temperature=1.0 -> worker.rollout.n 16
countdown: actor.optim.lr=2e-6 -> worker.actor.optim.lr 2e-06
countdown: algorithm.kl_ctrl.kl_coef=0.01 -> algorithm.kl_coef 0.01
countdown: actor.strategy=fsdp -> worker.actor.strategy fsdp
countdown: trainer.test_freq=5 trainer.resume_mode=auto trainer.nnodes=1 -> trainer.val_freq 5
countdown: trainer.max_actor_ckpt_to_keep=3 trainer.log_val_generations=3 -> trainer.save_limit 3
number_game: MAX_STEPS=1 -> trainer.max_steps 1
number_game: TOTAL_EPOCHS=15 -> trainer.total_epochs 15
number_game: MODEL_PATH=Qwen/Qwen2.5-VL-7B-Instruct GPUS_PER_NODE=4 TENSOR_PARALLEL_SIZE=2 \
    ROLLOUT_BATCH_SIZE=256 GLOBAL_BATCH_SIZE=128 -> worker.rollout.tensor_parallel_size 2
number_game: ROLLOUT_BATCH_SIZE=64 GLOBAL_BATCH_SIZE=32 -> worker.actor.global_batch_size 32
number_game: GPU_MEMORY_UTIL=0.4 -> worker.rollout.gpu_memory_utilization 0.4
number_game: GPUS_PER_NODE=4 -> trainer.n_gpus_per_node 4
number_game: TENSOR_PARALLEL_SIZE=2 -> worker.rollout.tensor_parallel_size 2
number_game: max_prompt_length=1024 max_response_length=128 rollout_batch_size=128 global_batch_size=64 lr=1.0e-6 \
    lr_warmup_ratio=0.0 rollout.n=5 tensor_parallel_size=1 -> data.rollout_batch_size 128
number_game: trainer.total_epochs=15 trainer.max_steps=null trainer.n_gpus_per_node=2 trainer.max_try_make_batch=20 \
    trainer.val_freq=5 trainer.val_before_train=true trainer.val_generations_to_log=3 trainer.save_freq=5 \
    trainer.save_limit=3 trainer.find_last_checkpoint=true -> trainer.save_freq 5
number_game: worker.actor.offload.offload_params=false worker.actor.offload.offload_optimizer=false \
    -> worker.actor.offload.offload_params False
number_game: ENGINE=easyr1 worker.ref.fsdp.enable_cpu_offload=false -> worker.ref.fsdp.enable_cpu_offload False
number_game: ENGINE=easyr1 worker.actor.fsdp.torch_dtype=bf16 worker.actor.optim.strategy=adamw_bf16 \
    -> worker.actor.optim.strategy adamw_bf16
custom: --model Qwen/Qwen2.5-7B --rollout_n 8 --epochs 20 -> trainer.total_epochs 20
custom: --rollout_n 3 -> worker.rollout.n 3
custom: actor_rollout_ref.model.lora_rank=8 actor_rollout_ref.model.lora_alpha=16 -> worker.actor.model.lora.alpha 16
custom: --n_gpus 8 -> trainer.n_gpus_per_node 8
custom: --n_gpus 8 actor_rollout_ref.rollout.tensor_model_parallel_size=4 -> worker.rollout.tensor_parallel_size 4
custom: --kl_coef 0.01 -> algorithm.kl_coef 0.01
custom: --lr 5e-7 -> worker.actor.optim.lr 5e-07
custom: actor_rollout_ref.ref.fsdp_config.param_offload=true -> worker.ref.offload.offload_params True
custom: ROLLOUT_N=5 NORM_ADV_BY_STD=true USE_KL_LOSS=true KL_LOSS_COEF=0.001 KL_LOSS_TYPE=low_var_kl \
    TRAIN_BATCH_SIZE=256 LEARNING_RATE=1e-6 TOTAL_EPOCHS=15 MAX_RESPONSE_LENGTH=1024 -> data.rollout_batch_size 256
"""


@pytest.mark.parametrize("line", TYPED.strip().replace("\\\n", "").splitlines(), ids=lambda line: line[:60])
def test_what_users_type(line):
    command, expected = line.split("->")
    task, words = command.split(":", 1)[0], command.split(":", 1)[1].split()
    variables = [word for word in words if word.split("=")[0].isupper()]
    arguments = [word for word in words if word not in variables]
    environ = dict(word.split("=", 1) for word in variables)
    recipe = load(task, arguments=arguments, environ=environ, hardware="gpu")
    key, value = expected.split()
    assert str(recipe.value(key)) == value
    require_supported(recipe, recipe.engine)


# task, lines that the user's own file has in the place of the recipe's, a key and its value
FILES = [
    (
        "custom",
        "actor_rollout_ref:\n  actor:\n    loss_agg_mode: seq-mean-token-sum-norm\n",
        "worker.actor.loss_agg_mode",
        "seq-mean-token-sum-norm",
    ),
    (
        "custom",
        "actor_rollout_ref:\n  ref:\n    fsdp_config:\n      param_offload: true\n",
        "worker.ref.offload.offload_params",
        True,
    ),
    (
        "countdown",
        "worker.actor.fsdp.torch_dtype: bf16\nworker.rollout.limit_images: 1\n",
        "worker.actor.fsdp.torch_dtype",
        "bf16",
    ),
]


@pytest.mark.parametrize(("task", "text", "key", "value"), FILES)
def test_what_users_write_into_a_file(task, text, key, value, tmp_path):
    recipe = (ROOT / "configs" / f"{task}.yaml").read_text(encoding="utf-8").split("\nembedded:")[0]
    file = tmp_path / "mine.yaml"
    file.write_text(f"{recipe}\n{text}")
    assert load(str(file), environ={}, hardware="gpu").value(key) == value


def test_a_reward_of_the_users_from_the_kits_folder(monkeypatch):
    monkeypatch.chdir(ROOT / "examples" / "custom_task")
    recipe = load("custom", arguments=["--reward_func", "./my_reward.py"], environ={}, hardware="gpu")
    path = recipe.worker.reward.reward_function
    assert path == f"{ROOT}/examples/custom_task/my_reward.py"
    spec = importlib.util.spec_from_file_location("my_reward", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.compute_score("math_reasoning", "15 + 27\nis 42", "42") == {"score": 1.0, "acc": 1.0}
    assert module.compute_score("math_reasoning", "", "42")["score"] == 0.0


def test_one_record_alone_is_told_the_minimum(tmp_path):
    from recipes.data import custom

    record = {"prompt": "请解答：15 + 27 = ?", "ground_truth": "42", "data_source": "math_reasoning"}
    (tmp_path / "my.json").write_text(json.dumps([record]))
    recipe = load("custom", arguments=["--data", str(tmp_path / "my.json")], environ={}, hardware="gpu")
    with pytest.raises(RecipeError, match="at least two|two different|minimum"):
        custom.ready(recipe, lambda line: None)


def test_a_step_that_was_not_saved_lists_those_that_were(tmp_path):
    from recipes.evaluation.models import find_model

    saved = tmp_path / "gsm8k" / "global_step_200" / "actor" / "huggingface"
    saved.mkdir(parents=True)
    (saved / "config.json").write_text("{}")
    wrong = tmp_path / "gsm8k" / "global_step_233" / "actor" / "huggingface"
    with pytest.raises(RecipeError, match="global_step_200"):
        find_model(str(wrong), "--model_path")
