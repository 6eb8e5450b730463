"""GSM8K's recipe: the values it promises, in verl's own keys, and what it says on a machine without a GPU."""

from __future__ import annotations

from itertools import islice

import pytest
from tokenizers import Tokenizer

from recipes.config import accounting, load
from recipes.engines import easyr1, verl
from recipes.errors import RecipeError
from recipes.paths import ROOT
from recipes.preflight import model
from recipes.tasks.gsm8k.prompt import gold_response, prompt, split_answer
from recipes.tasks.gsm8k.rows import PUBLISHED
from recipes.tasks.gsm8k.word_problems import TINY, generate

COUNTDOWNS_MODEL = "recipes/tasks/countdown/tiny"
CHAT_TOKENS = 8  # what the chat format adds to a prompt, at most

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
    counted = accounting(load("gsm8k", environ={}, hardware="gpu"), PUBLISHED["train"])
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


@pytest.mark.skipif((ROOT / "recipes/tasks/gsm8k/tiny").exists(), reason="the recipe has a tiny model of its own")
def test_without_a_gpu_it_asks_for_a_model_and_takes_the_one_given():
    with pytest.raises(RecipeError) as raised:
        model.inspect(load("gsm8k", environ={}, hardware="cpu"))
    assert "MODEL_PATH" in raised.value.fix
    assert "configs/gsm8k.yaml, embedded" in raised.value.where
    given = load("gsm8k", environ={"MODEL_PATH": COUNTDOWNS_MODEL}, hardware="cpu")
    assert given.embedded_on
    assert not model.inspect(given)


def test_generated_problems_fit_the_lengths_even_for_a_tokenizer_that_knows_few_words():
    tokenizer = Tokenizer.from_file(str(ROOT / COUNTDOWNS_MODEL / "tokenizer.json"))
    limits = load("gsm8k", environ={}, hardware="cpu").data
    problems = list(islice(generate(TINY, ("train",), seed=0), 1000))
    prompts = [len(tokenizer.encode(prompt(item.question)).ids) for item in problems]
    responses = [len(tokenizer.encode(gold_response(*split_answer(item.answer))).ids) for item in problems]
    assert 100 < max(prompts) + CHAT_TOKENS <= limits.max_prompt_length
    assert 50 < max(responses) < limits.max_response_length
