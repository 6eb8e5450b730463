"""The reverse of the translation to verl gives back what went in, key by key."""

from __future__ import annotations

import pytest

from recipes.config import load, official
from recipes.config.official import AS_WRITTEN, canonical
from recipes.config.schema import Recipe, leaves
from recipes.engines.verl import translate

FILLED = {
    "worker.rollout.max_model_len": "the translation fills it in",
    "worker.actor.max_token_len_per_device": "the translation fills it in",
    "trainer.total_epochs": "at least max_steps",
}


def back_and_forth(*arguments):
    """(key, what the recipe says, what verl's keys say) for every key that both tell."""
    recipe = load(
        "countdown",
        arguments=["worker.actor.recompute_old_log_probs=true", *arguments],
        environ=AS_WRITTEN,
        hardware="gpu",
    )
    keys = dict(translate(recipe))
    keys["custom_reward_function.path"] = keys.pop("reward.custom_reward_function.path")
    before = canonical({path: recipe.value(path) for path in leaves(Recipe) if path != "verl"})
    after = canonical(official.to_schema(keys))
    before["data.prompt_key"] = "prompt"
    return [(key, before[key], after[key]) for key in after if key in before and key not in FILLED]


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("algorithm.use_kl_loss=true", "algorithm.kl_coef=0.3", "algorithm.kl_penalty=abs"),
        ("algorithm.use_kl_loss=true", "algorithm.kl_loss_coef=0.7", "algorithm.kl_loss_type=kl"),
        ("worker.actor.loss_avg_mode=seq", "worker.actor.loss_type=gspo_token", "worker.actor.dynamic_batching=true"),
        ("worker.actor.model.lora.rank=8", "worker.actor.model.lora.target_modules=q_proj,v_proj"),
        ("worker.rollout.limit_images=1", "data.min_pixels=1000", "data.max_pixels=2000", "worker.rollout.dtype=fp16"),
        ("trainer.save_limit=-1", "trainer.save_model_only=true", "trainer.find_last_checkpoint=false"),
        ("trainer.save_hf_model=false", "trainer.max_steps=7", "data.val_batch_size=32"),
        ("worker.actor.optim.min_lr_ratio=0.1", "worker.actor.optim.lr_warmup_steps=5"),
        ("worker.rollout.val_override_config.temperature=0.6", "worker.rollout.val_override_config.n=4"),
    ],
    ids=" ".join,
)
def test_what_is_translated_reads_back(arguments):
    pairs = back_and_forth(*arguments)
    assert len(pairs) > 70
    assert not [(key, before, after) for key, before, after in pairs if before != after]


def test_disabled_kl_reads_back():
    told = {key: (before, after) for key, before, after in back_and_forth("algorithm.disable_kl=true")}
    assert told["algorithm.disable_kl"] == (True, True)


def test_every_rule_is_for_a_key_of_the_schema():
    assert set(official.RULES) | set(official.SUPERSEDED) <= set(leaves(Recipe))


def test_repeated_names_say_nothing_new():
    first, second = leaves(Recipe)["worker.actor.micro_batch_size_per_device_for_experience"].info.verl
    assert official.repeats(second, {first: 8, second: 8})
    assert not official.repeats(second, {first: 8, second: 4})
    assert not official.repeats("data.truncation", {"data.truncation": "error"})
