"""What GSM8K and the number game promise, in verl's keys, and the arithmetic of documented commands."""

from __future__ import annotations

import pytest

from recipes.config import accounting, check, load
from recipes.engines import easyr1, verl
from recipes.tasks.gsm8k.pretraining import SPEC as GSM8K
from recipes.tasks.gsm8k.rows import PUBLISHED
from recipes.tasks.number_game.rules import PRESETS
from recipes.tasks.pretrain import chat_texts

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
PROMISED = {
    "gsm8k": {
        "actor_rollout_ref.model.path": "Qwen/Qwen2.5-3B",
        "data.train_batch_size": 32,
        "data.max_prompt_length": 512,
        "data.max_response_length": 1024,
        f"{ACTOR}.ppo_mini_batch_size": 32,
        f"{ACTOR}.ppo_micro_batch_size_per_gpu": 4,
        f"{ACTOR}.optim.lr": 1e-6,
        f"{ACTOR}.optim.lr_scheduler_type": "cosine",
        f"{ACTOR}.use_kl_loss": False,
        "algorithm.use_kl_in_reward": True,
        "algorithm.kl_ctrl.kl_coef": 0.01,
        f"{ROLLOUT}.n": 16,
        f"{ROLLOUT}.val_kwargs.temperature": 0.0,
        "trainer.n_gpus_per_node": 8,
    },
    "number_game": {
        "actor_rollout_ref.model.path": "Qwen/Qwen2.5-VL-3B-Instruct",
        "data.train_batch_size": 128,
        "data.val_batch_size": 256,
        "data.mm_processor_kwargs.min_pixels": 262144,
        "data.mm_processor_kwargs.max_pixels": 4194304,
        "algorithm.use_kl_in_reward": False,
        f"{ACTOR}.use_kl_loss": True,
        f"{ACTOR}.kl_loss_type": "low_var_kl",
        f"{ACTOR}.kl_loss_coef": 0.01,
        f"{ACTOR}.ppo_mini_batch_size": 64,
        f"{ACTOR}.fsdp_config.param_offload": True,
        f"{ROLLOUT}.n": 5,
        f"{ROLLOUT}.limit_images": 1,
        f"{ROLLOUT}.max_model_len": 1152,
        f"{ROLLOUT}.load_format": "safetensors",
        f"{ROLLOUT}.val_kwargs.temperature": 0.6,
        f"{ROLLOUT}.val_kwargs.do_sample": True,
        "trainer.test_freq": 5,
        "trainer.save_freq": 5,
        "trainer.n_gpus_per_node": 2,
    },
}


@pytest.mark.parametrize("task", PROMISED)
def test_verl_gets_what_the_recipe_promises_and_easyr1_the_same(task):
    keys = verl.translate(load(task, environ={}, hardware="gpu"))
    assert {key: keys[key] for key in PROMISED[task]} == PROMISED[task]
    recipe = load(task, environ={"ENGINE": "easyr1"}, hardware="gpu")
    same = easyr1.translate(recipe)
    for key in ("algorithm.kl_coef", "worker.rollout.n", "worker.actor.optim.lr", "trainer.val_freq"):
        assert same[key] == recipe.value(key)
    assert same["algorithm.use_kl_loss"] == keys[f"{ACTOR}.use_kl_loss"]
    assert same["worker.reward.reward_function"].endswith(f"reward_functions/{task}.py:compute_score_batch")


SEVEN_B = "GPUS_PER_NODE=4 TENSOR_PARALLEL_SIZE=2 ROLLOUT_BATCH_SIZE=256 GLOBAL_BATCH_SIZE=128"


@pytest.mark.parametrize(
    ("task", "variables", "step", "epoch", "total"),
    [
        ("gsm8k", "", (32, 512, 1, 64), 233, 699),
        ("number_game", "TOTAL_EPOCHS=15", (128, 640, 2, 160), 9, 135),
        ("number_game", f"MODEL_PATH=/path/to/Qwen2.5-VL-7B-Instruct {SEVEN_B}", (256, 1280, 2, 160), 4, 60),
        ("number_game", "ROLLOUT_BATCH_SIZE=64 GLOBAL_BATCH_SIZE=32", (64, 320, 2, 80), 18, 270),
    ],
)
def test_documented_commands_divide_evenly(task, variables, step, epoch, total):
    environ = dict(word.split("=", 1) for word in variables.split())
    for engine in ("verl", "easyr1"):
        check(recipe := load(task, environ={**environ, "ENGINE": engine}, hardware="gpu"))
        counted = accounting(recipe, PUBLISHED["train"] if task == "gsm8k" else PRESETS["full"].train_size)
        assert (counted.prompts, counted.responses, counted.updates, counted.responses_per_gpu) == step
        assert (counted.steps_per_epoch, counted.total_steps) == (epoch, total)


def test_generated_problems_and_their_answers_fit_the_lengths():
    tokenizer = GSM8K.tokenizer()
    limits = load("gsm8k", environ={}, hardware="cpu").data
    drawn = list(GSM8K.examples(GSM8K.plan, 0, 1000))
    prompts = [len(ids) for ids in tokenizer(chat_texts(tokenizer, [example.prompt for example in drawn])).input_ids]
    responses = [len(ids) + 1 for ids in tokenizer([example.response for example in drawn]).input_ids]
    assert limits.max_prompt_length - 10 <= max(prompts) <= limits.max_prompt_length
    assert max(responses) <= limits.max_response_length
