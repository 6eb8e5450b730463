"""Values that contradict each other, or that have no effect together."""

from __future__ import annotations

from collections.abc import Iterator

from recipes.config.checks.problem import problem
from recipes.config.meaning import AVERAGES
from recipes.config.schema import Recipe
from recipes.errors import RecipeError


def groups(recipe: Recipe) -> Iterator[RecipeError]:
    estimator, n = recipe.algorithm.adv_estimator, recipe.worker.rollout.n
    grouped = (
        "grpo",
        "grpo_passk",
        "rloo",
        "grpo_vectorized",
        "rloo_vectorized",
        "reinforce_plus_plus_baseline",
        "opo",
    )
    if estimator in grouped and n < 2:
        yield problem(
            recipe,
            f"{estimator} compares the responses of a group, and worker.rollout.n is {n}",
            "set ROLLOUT_N to 2 or more; 5 is usual",
            "worker.rollout.n",
        )
    validation = recipe.worker.rollout.val_override_config
    temperature = validation.temperature if validation.temperature is not None else recipe.worker.rollout.temperature
    if validation.n > 1 and temperature == 0:
        yield problem(
            recipe,
            f"validation asks for {validation.n} responses a prompt at temperature 0, which are all the same",
            "set worker.rollout.val_override_config.n to 1, or a temperature above 0",
            "worker.rollout.val_override_config.n",
            "worker.rollout.val_override_config.temperature",
        )


def lengths(recipe: Recipe) -> Iterator[RecipeError]:
    longest = recipe.data.max_prompt_length + recipe.data.max_response_length
    limit = recipe.worker.rollout.max_model_len
    if limit is not None and limit < longest:
        yield problem(
            recipe,
            f"worker.rollout.max_model_len {limit} is shorter than prompt + response, {longest} tokens",
            f"set worker.rollout.max_model_len to {longest}, or to null",
            "worker.rollout.max_model_len",
            "data.max_prompt_length",
            "data.max_response_length",
        )
    actor = recipe.worker.actor
    budget = actor.max_token_len_per_device
    if actor.dynamic_batching and budget is not None and budget * actor.ulysses_size < longest:
        yield problem(
            recipe,
            f"worker.actor.max_token_len_per_device {budget} cannot hold one sequence of {longest} tokens",
            f"set worker.actor.max_token_len_per_device to {-(-longest // actor.ulysses_size)} or more",
            "worker.actor.max_token_len_per_device",
        )
    low, high = recipe.data.min_pixels, recipe.data.max_pixels
    if low is not None and high is not None and low > high:
        yield problem(
            recipe,
            f"data.min_pixels {low} is above data.max_pixels {high}",
            "exchange them",
            "data.min_pixels",
            "data.max_pixels",
        )


def kl(recipe: Recipe) -> Iterator[RecipeError]:
    algorithm = recipe.algorithm
    on = [name for name in ("use_kl_loss", "use_kl_in_reward") if getattr(algorithm, name)]
    if algorithm.disable_kl and on:
        yield problem(
            recipe,
            f"algorithm.disable_kl and algorithm.{on[0]} are both true",
            "set one of them to false",
            "algorithm.disable_kl",
            f"algorithm.{on[0]}",
        )
    if not algorithm.disable_kl and not algorithm.use_kl_loss and algorithm.use_kl_in_reward is False:
        yield problem(
            recipe,
            "KL is neither in the loss nor in the reward, yet algorithm.disable_kl is false",
            "set algorithm.disable_kl to true, or algorithm.use_kl_in_reward to null",
            "algorithm.use_kl_in_reward",
            "algorithm.disable_kl",
        )


def averages(recipe: Recipe) -> Iterator[RecipeError]:
    """loss_agg_mode wins over loss_avg_mode; where the coarser key was set as late or later, that was not meant."""
    names = "worker.actor.loss_avg_mode", "worker.actor.loss_agg_mode"
    coarse, fine = (recipe.value(name) for name in names)
    later = recipe.source_of(names[0]).rank - recipe.source_of(names[1]).rank
    if fine is None or recipe.source_of(names[0]).layer == "default" or later < 0:
        return
    if (coarse == "seq" and not fine.startswith("seq")) or (later > 0 and fine != AVERAGES[coarse]):
        yield problem(
            recipe,
            f"{names[0]} is {coarse}, but {names[1]} is {fine}",
            f"set one of the two, or {names[1]}=null",
            *names,
        )


def combinations(recipe: Recipe) -> Iterator[RecipeError]:
    actor = recipe.worker.actor
    if actor.ulysses_size > 1 and not actor.padding_free:
        yield problem(
            recipe,
            f"worker.actor.ulysses_size {actor.ulysses_size} needs worker.actor.padding_free",
            "set worker.actor.padding_free to true, or ulysses_size to 1",
            "worker.actor.ulysses_size",
            "worker.actor.padding_free",
        )
    yield from averages(recipe)
    if recipe.algorithm.filter_low >= recipe.algorithm.filter_high:
        yield problem(
            recipe,
            f"filter_low {recipe.algorithm.filter_low} is not below filter_high {recipe.algorithm.filter_high}",
            "EasyR1's own values are 0.01 and 0.99",
            "algorithm.filter_low",
            "algorithm.filter_high",
        )
