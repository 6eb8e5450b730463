"""Batches and GPUs: what does not divide is refused here, where the trainer would pad, drop or stop late."""

from __future__ import annotations

from collections.abc import Iterator

from recipes.config.checks.problem import either, nearest_divisors, nearest_multiples, problem
from recipes.config.schema import Recipe
from recipes.errors import RecipeError


def machines(recipe: Recipe, gpus: int | None) -> Iterator[RecipeError]:
    trainer, tensor = recipe.trainer, recipe.worker.rollout.tensor_parallel_size
    if recipe.hardware == "gpu" and gpus is not None and trainer.n_gpus_per_node > gpus:
        yield problem(
            recipe,
            f"trainer.n_gpus_per_node is {trainer.n_gpus_per_node}, but this machine has {gpus} GPU{'s' * (gpus != 1)}",
            f"set GPUS_PER_NODE={gpus}" if gpus else "set HARDWARE=cpu",
            "trainer.n_gpus_per_node",
        )
    if recipe.n_gpus % tensor:
        yield problem(
            recipe,
            f"worker.rollout.tensor_parallel_size {tensor} does not divide the {recipe.n_gpus} GPUs",
            f"set TENSOR_PARALLEL_SIZE to {either(nearest_divisors(tensor, recipe.n_gpus))}",
            "worker.rollout.tensor_parallel_size",
            "trainer.n_gpus_per_node",
        )
    for key, size in _ulysses(recipe):
        if recipe.n_gpus % size:
            yield problem(
                recipe,
                f"{key} {size} does not divide the {recipe.n_gpus} GPUs",
                f"set {key} to {either(nearest_divisors(size, recipe.n_gpus))}",
                key,
                "trainer.n_gpus_per_node",
            )


def _ulysses(recipe: Recipe) -> Iterator[tuple[str, int]]:
    yield "worker.actor.ulysses_size", recipe.worker.actor.ulysses_size
    if recipe.algorithm.adv_estimator == "gae":
        yield "worker.critic.ulysses_size", recipe.worker.critic.ulysses_size


def batches(recipe: Recipe) -> Iterator[RecipeError]:
    roles = [("worker.actor", recipe.worker.actor)]
    if recipe.algorithm.adv_estimator == "gae":
        roles.append(("worker.critic", recipe.worker.critic))  # type: ignore[arg-type]
    step, n = recipe.data.rollout_batch_size, recipe.worker.rollout.n
    for name, role in roles:
        size = role.global_batch_size
        if step % size:
            yield problem(
                recipe,
                f"data.rollout_batch_size {step} is not a multiple of {name}.global_batch_size {size} prompts",
                f"set {name}.global_batch_size to {either(nearest_divisors(size, step))}, "
                f"or data.rollout_batch_size to {either(nearest_multiples(step, size))}",
                "data.rollout_batch_size",
                f"{name}.global_batch_size",
            )
        ranks = max(1, recipe.n_gpus // role.ulysses_size)
        responses = size * n
        if responses % ranks:
            key = f"{name}.global_batch_size"
            yield problem(
                recipe,
                f"{key} {size} x worker.rollout.n {n} = {responses} responses do not divide over "
                f"{ranks} data-parallel ranks",
                f"set {recipe.source_of(key).follows or key} to {either(_sizes(size, n, ranks))}",
                key,
                "worker.rollout.n",
                "trainer.n_gpus_per_node",
            )
        elif not role.dynamic_batching:
            yield from _micro_batches(recipe, name, responses // ranks, "update")
            yield from _micro_batches(recipe, name, step * n // ranks, "experience")
    mini = recipe.data.mini_rollout_batch_size
    if mini is not None and step % mini:
        yield problem(
            recipe,
            f"data.mini_rollout_batch_size {mini} does not divide data.rollout_batch_size {step}",
            f"set data.mini_rollout_batch_size to {either(nearest_divisors(mini, step))}",
            "data.mini_rollout_batch_size",
            "data.rollout_batch_size",
        )


def _micro_batches(recipe: Recipe, name: str, each: int, use: str) -> Iterator[RecipeError]:
    """verl cuts a GPU's responses into whole micro-batches, for an update as well as for log-probabilities."""
    key = f"{name}.micro_batch_size_per_device_for_{use}"
    micro, whole = recipe.value(key), "update" if use == "update" else "step"
    if each % micro:
        yield problem(
            recipe,
            f"{each} responses per GPU and {whole} are not a multiple of {key} {micro}",
            f"set {key} to {either(nearest_divisors(micro, each))}",
            key,
            f"{name}.global_batch_size" if use == "update" else "data.rollout_batch_size",
        )


def _sizes(size: int, n: int, ranks: int) -> list[int]:
    fitting = [candidate for candidate in range(1, size + ranks + 1) if candidate * n % ranks == 0]
    below = [candidate for candidate in fitting if candidate <= size]
    return below[-1:] + [candidate for candidate in fitting if candidate > size][:1]
