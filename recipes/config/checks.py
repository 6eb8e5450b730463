"""Numbers that must fit each other, checked before anything starts: each message names the keys and the nearest fit."""

from __future__ import annotations

from collections.abc import Iterator

from recipes.config.schema import Recipe
from recipes.errors import RecipeError


def check(recipe: Recipe, gpus: int | None = None) -> None:
    """Raise RecipeError for the first combination that the trainer would refuse or silently change.

    Args:
        recipe: a resolved recipe.
        gpus: GPUs of this machine, where they are known; left out on machines without.
    """
    for problem in _problems(recipe, gpus):
        raise problem


def _problems(recipe: Recipe, gpus: int | None) -> Iterator[RecipeError]:
    yield from _machines(recipe, gpus)
    yield from _batches(recipe)
    yield from _groups(recipe)
    yield from _lengths(recipe)
    yield from _kl(recipe)
    yield from _combinations(recipe)


def _error(recipe: Recipe, what: str, fix: str, *keys: str) -> RecipeError:
    return RecipeError(what, where="; ".join(f"{key}: {recipe.source_of(key)}" for key in keys), fix=fix)


def nearest_divisors(number: int, of: int) -> list[int]:
    """The divisors of `of` next to `number`, below and above; one where there is only one."""
    divisors = [candidate for candidate in range(1, of + 1) if of % candidate == 0]
    below = [divisor for divisor in divisors if divisor <= number]
    above = [divisor for divisor in divisors if divisor > number]
    return below[-1:] + above[:1]


def nearest_multiples(number: int, of: int) -> list[int]:
    """The positive multiples of `of` next to `number`, below and above."""
    below = number // of * of
    return [multiple for multiple in (below, below + of) if multiple > 0]


def _or(numbers: list[int]) -> str:
    return " or ".join(str(number) for number in numbers)


def _machines(recipe: Recipe, gpus: int | None) -> Iterator[RecipeError]:
    trainer, tensor = recipe.trainer, recipe.worker.rollout.tensor_parallel_size
    if recipe.hardware == "gpu" and gpus is not None and trainer.n_gpus_per_node > gpus:
        yield _error(
            recipe,
            f"trainer.n_gpus_per_node is {trainer.n_gpus_per_node}, but this machine has {gpus} GPU{'s' * (gpus != 1)}",
            f"set GPUS_PER_NODE={gpus}" if gpus else "set HARDWARE=cpu",
            "trainer.n_gpus_per_node",
        )
    if recipe.n_gpus % tensor:
        yield _error(
            recipe,
            f"worker.rollout.tensor_parallel_size {tensor} does not divide the {recipe.n_gpus} GPUs",
            f"set TENSOR_PARALLEL_SIZE to {_or(nearest_divisors(tensor, recipe.n_gpus))}",
            "worker.rollout.tensor_parallel_size",
            "trainer.n_gpus_per_node",
        )
    for key, size in _ulysses(recipe):
        if recipe.n_gpus % size:
            yield _error(
                recipe,
                f"{key} {size} does not divide the {recipe.n_gpus} GPUs",
                f"set {key} to {_or(nearest_divisors(size, recipe.n_gpus))}",
                key,
                "trainer.n_gpus_per_node",
            )


def _ulysses(recipe: Recipe) -> Iterator[tuple[str, int]]:
    yield "worker.actor.ulysses_size", recipe.worker.actor.ulysses_size
    if recipe.algorithm.adv_estimator == "gae":
        yield "worker.critic.ulysses_size", recipe.worker.critic.ulysses_size


def _batches(recipe: Recipe) -> Iterator[RecipeError]:
    roles = [("worker.actor", recipe.worker.actor)]
    if recipe.algorithm.adv_estimator == "gae":
        roles.append(("worker.critic", recipe.worker.critic))  # type: ignore[arg-type]
    step, n = recipe.data.rollout_batch_size, recipe.worker.rollout.n
    for name, role in roles:
        size, micro = role.global_batch_size, role.micro_batch_size_per_device_for_update
        if step % size:
            yield _error(
                recipe,
                f"data.rollout_batch_size {step} is not a multiple of {name}.global_batch_size {size} (both are prompts)",
                f"set {name}.global_batch_size to {_or(nearest_divisors(size, step))}, "
                f"or data.rollout_batch_size to {_or(nearest_multiples(step, size))}",
                "data.rollout_batch_size",
                f"{name}.global_batch_size",
            )
        ranks = max(1, recipe.n_gpus // role.ulysses_size)
        responses = size * n
        if responses % ranks:
            yield _error(
                recipe,
                f"{name}.global_batch_size {size} x worker.rollout.n {n} = {responses} responses do not divide over "
                f"{ranks} data-parallel ranks",
                f"set {name}.global_batch_size to {_or(_sizes(size, n, ranks))}",
                f"{name}.global_batch_size",
                "worker.rollout.n",
                "trainer.n_gpus_per_node",
            )
        elif not role.dynamic_batching and responses // ranks % micro:
            each = responses // ranks
            yield _error(
                recipe,
                f"{each} responses per GPU and update are not a multiple of "
                f"{name}.micro_batch_size_per_device_for_update {micro}",
                f"set {name}.micro_batch_size_per_device_for_update to {_or(nearest_divisors(micro, each))}",
                f"{name}.micro_batch_size_per_device_for_update",
                f"{name}.global_batch_size",
            )
    mini = recipe.data.mini_rollout_batch_size
    if mini is not None and step % mini:
        yield _error(
            recipe,
            f"data.mini_rollout_batch_size {mini} does not divide data.rollout_batch_size {step}",
            f"set data.mini_rollout_batch_size to {_or(nearest_divisors(mini, step))}",
            "data.mini_rollout_batch_size",
            "data.rollout_batch_size",
        )


def _sizes(size: int, n: int, ranks: int) -> list[int]:
    fitting = [candidate for candidate in range(1, size + ranks + 1) if candidate * n % ranks == 0]
    below = [candidate for candidate in fitting if candidate <= size]
    return below[-1:] + [candidate for candidate in fitting if candidate > size][:1]


def _groups(recipe: Recipe) -> Iterator[RecipeError]:
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
        yield _error(
            recipe,
            f"{estimator} compares the responses of a group, and worker.rollout.n is {n}",
            "set ROLLOUT_N to 2 or more; 5 is usual",
            "worker.rollout.n",
        )
    validation = recipe.worker.rollout.val_override_config
    temperature = validation.temperature if validation.temperature is not None else recipe.worker.rollout.temperature
    if validation.n > 1 and temperature == 0:
        yield _error(
            recipe,
            f"validation asks for {validation.n} responses a prompt at temperature 0, which are all the same",
            "set worker.rollout.val_override_config.n to 1, or a temperature above 0",
            "worker.rollout.val_override_config.n",
            "worker.rollout.val_override_config.temperature",
        )


def _lengths(recipe: Recipe) -> Iterator[RecipeError]:
    longest = recipe.data.max_prompt_length + recipe.data.max_response_length
    limit = recipe.worker.rollout.max_model_len
    if limit is not None and limit < longest:
        yield _error(
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
        yield _error(
            recipe,
            f"worker.actor.max_token_len_per_device {budget} cannot hold one sequence of {longest} tokens",
            f"set worker.actor.max_token_len_per_device to {-(-longest // actor.ulysses_size)} or more",
            "worker.actor.max_token_len_per_device",
        )
    low, high = recipe.data.min_pixels, recipe.data.max_pixels
    if low is not None and high is not None and low > high:
        yield _error(
            recipe,
            f"data.min_pixels {low} is above data.max_pixels {high}",
            "exchange them",
            "data.min_pixels",
            "data.max_pixels",
        )
    buffer = recipe.worker.reward.overlong_buffer
    if buffer.enable and not 0 < buffer.len <= recipe.data.max_response_length:
        yield _error(
            recipe,
            f"worker.reward.overlong_buffer.len {buffer.len} is not between 1 and "
            f"data.max_response_length {recipe.data.max_response_length}",
            "DAPO uses a fifth of the response's length",
            "worker.reward.overlong_buffer.len",
            "data.max_response_length",
        )


def _kl(recipe: Recipe) -> Iterator[RecipeError]:
    algorithm = recipe.algorithm
    on = [name for name in ("use_kl_loss", "use_kl_in_reward") if getattr(algorithm, name)]
    if algorithm.disable_kl and on:
        yield _error(
            recipe,
            f"algorithm.disable_kl and algorithm.{on[0]} are both true",
            "set one of them to false",
            "algorithm.disable_kl",
            f"algorithm.{on[0]}",
        )
    if not algorithm.disable_kl and not algorithm.use_kl_loss and algorithm.use_kl_in_reward is False:
        yield _error(
            recipe,
            "KL is neither in the loss nor in the reward, yet algorithm.disable_kl is false",
            "set algorithm.disable_kl to true, or algorithm.use_kl_in_reward to null",
            "algorithm.use_kl_in_reward",
            "algorithm.disable_kl",
        )
    for name in ("kl_loss_coef", "kl_loss_type"):
        key = f"algorithm.{name}"
        if getattr(algorithm, name) is not None and not algorithm.use_kl_loss and recipe.source_of(key).by_user:
            yield _error(
                recipe,
                f"{key} has no effect: KL is not in the loss",
                "set USE_KL_LOSS=true, or give the weight of KL in the reward as KL_COEF",
                key,
                "algorithm.use_kl_loss",
            )


def _combinations(recipe: Recipe) -> Iterator[RecipeError]:
    actor = recipe.worker.actor
    if actor.ulysses_size > 1 and not actor.padding_free:
        yield _error(
            recipe,
            f"worker.actor.ulysses_size {actor.ulysses_size} needs worker.actor.padding_free",
            "set worker.actor.padding_free to true, or ulysses_size to 1",
            "worker.actor.ulysses_size",
            "worker.actor.padding_free",
        )
    if actor.loss_agg_mode is not None and actor.loss_avg_mode == "seq" and not actor.loss_agg_mode.startswith("seq"):
        yield _error(
            recipe,
            f"worker.actor.loss_avg_mode is seq, but worker.actor.loss_agg_mode is {actor.loss_agg_mode}",
            "set one of the two",
            "worker.actor.loss_avg_mode",
            "worker.actor.loss_agg_mode",
        )
    if recipe.algorithm.filter_low >= recipe.algorithm.filter_high:
        yield _error(
            recipe,
            f"filter_low {recipe.algorithm.filter_low} is not below filter_high {recipe.algorithm.filter_high}",
            "EasyR1's own values are 0.01 and 0.99",
            "algorithm.filter_low",
            "algorithm.filter_high",
        )
