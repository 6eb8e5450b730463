"""What EasyR1 asks of its numbers beyond what verl does."""

from __future__ import annotations

from collections.abc import Iterator

from recipes.config.checks.problem import either, nearest_divisors, problem
from recipes.config.schema import Recipe
from recipes.errors import RecipeError


def problems(recipe: Recipe) -> Iterator[RecipeError]:
    """EasyR1 divides by the micro-batch sizes even where micro-batches are filled by tokens."""
    if recipe.engine != "easyr1":
        return
    actor, n = recipe.worker.actor, recipe.worker.rollout.n
    if actor.clip_ratio_low > 1:
        yield problem(
            recipe,
            f"EasyR1 takes the logarithm of 1 - worker.actor.clip_ratio_low, which is {actor.clip_ratio_low}",
            "set it to 1, which is no lower bound either",
            "worker.actor.clip_ratio_low",
        )
    responses = recipe.data.rollout_batch_size * n
    experience = actor.micro_batch_size_per_device_for_experience
    if responses % experience:
        yield problem(
            recipe,
            f"{responses} responses a step are not a multiple of "
            f"worker.actor.micro_batch_size_per_device_for_experience {experience}",
            "set worker.actor.micro_batch_size_per_device_for_experience to "
            + either(nearest_divisors(experience, responses)),
            "worker.actor.micro_batch_size_per_device_for_experience",
            "data.rollout_batch_size",
            "worker.rollout.n",
        )
    ranks = max(1, recipe.n_gpus // actor.ulysses_size)
    each, micro = actor.global_batch_size * n // ranks, actor.micro_batch_size_per_device_for_update
    if each % micro:
        yield problem(
            recipe,
            f"{each} responses per GPU and update are not a multiple of "
            f"worker.actor.micro_batch_size_per_device_for_update {micro}",
            f"set worker.actor.micro_batch_size_per_device_for_update to {either(nearest_divisors(micro, each))}",
            "worker.actor.micro_batch_size_per_device_for_update",
            "worker.actor.global_batch_size",
        )
    if actor.fsdp.enable_cpu_offload and each != micro:
        yield problem(
            recipe,
            "EasyR1 cannot accumulate gradients with worker.actor.fsdp.enable_cpu_offload",
            f"set it to false and use worker.actor.offload.offload_params, or set "
            f"worker.actor.micro_batch_size_per_device_for_update to {each}",
            "worker.actor.fsdp.enable_cpu_offload",
            "worker.actor.micro_batch_size_per_device_for_update",
        )
    longest = recipe.data.max_prompt_length + recipe.data.max_response_length
    if recipe.worker.rollout.max_num_batched_tokens < longest:
        yield problem(
            recipe,
            f"worker.rollout.max_num_batched_tokens {recipe.worker.rollout.max_num_batched_tokens} is less than "
            f"prompt + response, {longest} tokens",
            f"set worker.rollout.max_num_batched_tokens to {longest} or more",
            "worker.rollout.max_num_batched_tokens",
            "data.max_prompt_length",
            "data.max_response_length",
        )
