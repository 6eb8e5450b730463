"""KL, averages, validation and reward."""

from __future__ import annotations

from typing import Any

from recipes.config.locate import split_function
from recipes.config.meaning import AVERAGES, CONSTANT_LENGTH, kl_places
from recipes.config.schema import Recipe
from recipes.engines.support import sampler
from recipes.engines.verl.rules.base import ACTOR, ROLLOUT, rule, uses_critic

DAPO_SHARE = 5
"""DAPO's buffer is a fifth of the longest response: 4,096 of 20,480 tokens (arXiv:2503.14476, section 4.1)."""


@rule(
    "algorithm.disable_kl",
    "algorithm.use_kl_loss",
    "algorithm.use_kl_in_reward",
    "algorithm.kl_penalty",
    "algorithm.kl_coef",
    "algorithm.kl_loss_coef",
    "algorithm.kl_loss_type",
)
def _kl(recipe: Recipe) -> dict[str, Any]:
    """verl applies a coefficient only where one of two switches is on, so both are always stated."""
    algorithm = recipe.algorithm
    in_reward, in_loss = kl_places(recipe)
    keys: dict[str, Any] = {"algorithm.use_kl_in_reward": in_reward, f"{ACTOR}.use_kl_loss": in_loss}
    if in_reward:
        keys["algorithm.kl_penalty"] = algorithm.kl_penalty
        keys["algorithm.kl_ctrl.kl_coef"] = algorithm.kl_coef
    if in_loss:
        coefficient = algorithm.kl_loss_coef
        keys[f"{ACTOR}.kl_loss_coef"] = algorithm.kl_coef if coefficient is None else coefficient
        keys[f"{ACTOR}.kl_loss_type"] = algorithm.kl_loss_type or algorithm.kl_penalty
    return keys


@rule(
    "worker.actor.loss_avg_mode",
    "worker.actor.loss_agg_mode",
    "worker.actor.loss_scale_factor",
    "worker.critic.loss_avg_mode",
)
def _averages(recipe: Recipe) -> dict[str, Any]:
    """Without a constant, verl divides by the longest response of a micro-batch, which is another one every time."""
    actor = recipe.worker.actor
    mode, constant = actor.loss_agg_mode or AVERAGES[actor.loss_avg_mode], actor.loss_scale_factor
    if mode == CONSTANT_LENGTH:
        constant = constant or recipe.data.max_response_length
    keys = {f"{ACTOR}.loss_agg_mode": mode, f"{ACTOR}.loss_scale_factor": constant}
    if uses_critic(recipe):
        keys["critic.loss_agg_mode"] = AVERAGES[recipe.worker.critic.loss_avg_mode]
    return keys


@rule("worker.rollout.val_override_config.*")
def _validation(recipe: Recipe) -> dict[str, Any]:
    """In verl, validation is greedy unless sampling is asked for; in EasyR1 it samples as training does."""
    rollout, given = recipe.worker.rollout, recipe.worker.rollout.val_override_config
    temperature = rollout.temperature if given.temperature is None else given.temperature
    return {
        f"{ROLLOUT}.val_kwargs.temperature": temperature,
        f"{ROLLOUT}.val_kwargs.top_p": rollout.top_p if given.top_p is None else given.top_p,
        f"{ROLLOUT}.val_kwargs.top_k": rollout.top_k if given.top_k is None else given.top_k,
        f"{ROLLOUT}.val_kwargs.n": given.n,
        f"{ROLLOUT}.val_kwargs.do_sample": temperature > 0,
    }


@rule("worker.reward.reward_function")
def _reward(recipe: Recipe) -> dict[str, Any]:
    if recipe.worker.reward.reward_function is None:
        return {}
    path, name = split_function(recipe.worker.reward.reward_function)
    return {
        "reward.custom_reward_function.path": path,
        "reward.custom_reward_function.name": name or "compute_score",
    }


def overlong_tokens(recipe: Recipe) -> int:
    """Tokens before the limit in which the penalty on length grows."""
    return recipe.worker.reward.overlong_buffer.len or max(1, recipe.data.max_response_length // DAPO_SHARE)


@rule("worker.reward.overlong_buffer.*")
def _overlong(recipe: Recipe) -> dict[str, Any]:
    """verl's DAPO reward manager holds the penalty; the naive one ignores it."""
    buffer = recipe.worker.reward.overlong_buffer
    if not buffer.enable:
        return {}
    place = "reward.reward_kwargs.overlong_buffer_cfg"
    return {
        "reward.reward_manager.name": "dapo",
        "reward.reward_kwargs.max_resp_len": recipe.data.max_response_length,
        **{f"{place}.{name}": value for name, value in buffer.model_dump().items()},
        f"{place}.len": overlong_tokens(recipe),
    }


@rule("trainer.max_try_make_batch")
def _tries(recipe: Recipe) -> dict[str, Any]:
    """verl's own buffer has no bound; ours has, and is used where there is one to keep."""
    most = max(0, recipe.trainer.max_try_make_batch)
    if not recipe.algorithm.online_filtering:
        return {}
    bounded = sampler("recipes.engines.samplers", "BoundedReplayBuffer") if most else {}
    return {"algorithm.filter_groups.max_num_gen_batches": most, **bounded}
