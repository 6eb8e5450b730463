"""GSM8K's recipe: the values it promises, in verl's own keys, and what it takes on a machine without a GPU."""

from __future__ import annotations

from recipes.config import accounting, load
from recipes.engines import easyr1, verl
from recipes.preflight import model
from recipes.tasks.gsm8k.pretraining import SPEC as GSM8K
from recipes.tasks.gsm8k.rows import PUBLISHED
from recipes.tasks.pretrain import chat_texts

PROMISED = {
    "actor_rollout_ref.model.path": "Qwen/Qwen2.5-3B",
    "data.train_batch_size": 32,
    "data.max_prompt_length": 512,
    "data.max_response_length": 1024,
    "actor_rollout_ref.actor.ppo_mini_batch_size": 32,
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 4,
    "actor_rollout_ref.actor.strategy": "fsdp",
    "actor_rollout_ref.actor.optim.lr": 1e-6,
    "actor_rollout_ref.actor.optim.lr_scheduler_type": "cosine",
    "actor_rollout_ref.actor.optim.min_lr_ratio": 0.0,
    "actor_rollout_ref.actor.use_kl_loss": False,
    "algorithm.use_kl_in_reward": True,
    "algorithm.kl_ctrl.kl_coef": 0.01,
    "algorithm.adv_estimator": "grpo",
    "actor_rollout_ref.rollout.name": "vllm",
    "actor_rollout_ref.rollout.n": 16,
    "actor_rollout_ref.rollout.temperature": 1.0,
    "actor_rollout_ref.rollout.tensor_model_parallel_size": 1,
    "actor_rollout_ref.rollout.val_kwargs.temperature": 0.0,
    "trainer.n_gpus_per_node": 8,
    "trainer.nnodes": 1,
}


def test_verl_gets_what_the_recipe_promises():
    keys = verl.translate(load("gsm8k", environ={}, hardware="gpu"))
    assert {key: keys[key] for key in PROMISED} == PROMISED


def test_a_step_is_512_responses_one_update_and_16_accumulation_steps():
    fixed = load("gsm8k", arguments=["worker.actor.dynamic_batching=false"], environ={}, hardware="gpu")
    counted = accounting(fixed, PUBLISHED["train"])
    assert (counted.prompts, counted.responses, counted.updates, counted.accumulation_steps) == (32, 512, 1, 16)
    assert (counted.steps_per_epoch, counted.total_steps) == (233, 699)


def test_easyr1_takes_kl_from_the_reward_too():
    keys = easyr1.translate(load("gsm8k", environ={}, hardware="gpu", arguments=["engine=easyr1"]))
    assert (keys["algorithm.disable_kl"], keys["algorithm.use_kl_loss"], keys["algorithm.kl_coef"]) == (
        False,
        False,
        0.01,
    )
    assert keys["worker.actor.optim.lr_scheduler_type"] == "cosine"


def test_without_a_gpu_it_takes_the_tiny_model_unless_another_is_given():
    recipe = load("gsm8k", environ={}, hardware="cpu")
    assert recipe.embedded_on
    assert recipe.worker.actor.model.model_path == str(GSM8K.tiny)
    assert not model.check_model(recipe)
    given = load("gsm8k", environ={"MODEL_PATH": "Qwen/Qwen2.5-0.5B"}, hardware="cpu")
    assert given.worker.actor.model.model_path == "Qwen/Qwen2.5-0.5B"


def test_the_cosine_reaches_its_end_with_the_last_step_on_a_cpu_too():
    keys = verl.translate(load("gsm8k", environ={"MAX_STEPS": "60"}, hardware="cpu"))
    assert keys["trainer.total_training_steps"] == 60
    assert keys["actor_rollout_ref.actor.optim.lr_scheduler_type"] == "cosine"
    assert keys["algorithm.use_kl_in_reward"] is True


def test_generated_problems_and_their_answers_fit_the_lengths():
    tokenizer = GSM8K.tokenizer()
    limits = load("gsm8k", environ={}, hardware="cpu").data
    drawn = list(GSM8K.examples(GSM8K.plan, 0, 1000))
    prompts = [len(ids) for ids in tokenizer(chat_texts(tokenizer, [example.prompt for example in drawn])).input_ids]
    responses = [len(ids) + 1 for ids in tokenizer([example.response for example in drawn]).input_ids]
    assert limits.max_prompt_length - 10 <= max(prompts) <= limits.max_prompt_length
    assert max(responses) <= limits.max_response_length
