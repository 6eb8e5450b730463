"""Values that contradict each other, before anything starts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from recipes.config.accounting import accounting
from recipes.config.kl import AVERAGES, CONSTANT_LENGTH, kl_places
from recipes.config.schema import Recipe
from recipes.errors import RecipeError


def problem(recipe: Recipe, what: str, fix: str, *keys: str) -> RecipeError:
    """The error for a mistake that lies in `keys`, with the layer that set each."""
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


def either(numbers: list[int]) -> str:
    """`4 or 8`."""
    return " or ".join(str(number) for number in numbers)


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


GSPO = ("gspo", "gspo_token")
WIDE_FOR_A_RESPONSE = 0.01
"""The mean log-ratio of a response's tokens moves by some 1e-4 in an update: GSPO's paper clips at 3e-4 and 4e-4."""


def clips(recipe: Recipe) -> Iterator[RecipeError]:
    """A lower clip above the upper one is nearly always an exchange; CISPO's weights may do without a lower bound."""
    actor = recipe.worker.actor
    low, high = actor.clip_ratio_low, actor.clip_ratio_high
    if actor.loss_type != "cispo" and low > high:
        yield problem(
            recipe,
            f"worker.actor.clip_ratio_low {low} is above worker.actor.clip_ratio_high {high}",
            "exchange them; DAPO's are 0.2 and 0.28",
            "worker.actor.clip_ratio_low",
            "worker.actor.clip_ratio_high",
        )


def filtering(recipe: Recipe) -> Iterator[RecipeError]:
    """A group of one cannot disagree with itself: EasyR1 would drop by the mean, verl would drop nothing."""
    if recipe.algorithm.online_filtering and recipe.worker.rollout.n < 2:
        yield problem(
            recipe,
            "algorithm.online_filtering drops groups whose responses agree, and worker.rollout.n is 1",
            "set ROLLOUT_N to 2 or more, or ONLINE_FILTERING=false",
            "worker.rollout.n",
            "algorithm.online_filtering",
        )


def buffers(recipe: Recipe) -> Iterator[RecipeError]:
    buffer, longest = recipe.worker.reward.overlong_buffer, recipe.data.max_response_length
    if buffer.enable and buffer.len is not None and buffer.len > longest:
        yield problem(
            recipe,
            f"worker.reward.overlong_buffer.len {buffer.len} is above data.max_response_length {longest}",
            "DAPO uses a fifth of the response's length, which is what null means",
            "worker.reward.overlong_buffer.len",
            "data.max_response_length",
            "worker.reward.overlong_buffer.enable",
        )


def remarks(recipe: Recipe) -> list[str]:
    """What runs, but hardly as its name promises; in words."""
    actor = recipe.worker.actor
    found = []
    if actor.loss_type in GSPO:
        mode = actor.loss_agg_mode or actor.loss_avg_mode
        if mode not in ("seq", "seq-mean-token-mean"):
            found.append(
                f"GSPO has one ratio for a response, but the loss is averaged by {mode}, so that long responses weigh "
                "more; its paper has worker.actor.loss_avg_mode=seq"
            )
        if actor.clip_ratio_high > WIDE_FOR_A_RESPONSE:
            found.append(
                f"the ratio of a whole response hardly ever moves by {actor.clip_ratio_high}: nothing will be clipped; "
                "GSPO's paper has CLIP_RATIO_LOW=3e-4 CLIP_RATIO_HIGH=4e-4"
            )
    asked = recipe.algorithm.preset in ("dapo", "gspo", "cispo") or actor.loss_type != "default"
    if asked and accounting(recipe, 0).updates == 1:
        found.append(
            "one update a step: the ratio of new to old policy is 1 and no clip acts; GLOBAL_BATCH_SIZE below "
            "ROLLOUT_BATCH_SIZE makes several"
        )
    return found


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


BY_DEVIATION = ("grpo", "grpo_passk", "grpo_vectorized")


class Reading(NamedTuple):
    """When keys take part.

    Attributes:
        keys: that have a reader only then; a last `*` stands for every key below.
        decided_by: the key that decides.
        read: whether they take part in a recipe.
        reason: why they do not, in words; `{}` is the value of the deciding key.
        fix: what the user might have meant.
    """

    keys: tuple[str, ...]
    decided_by: str
    read: Callable[[Recipe], bool]
    reason: str
    fix: str


def _own_in_loss(recipe: Recipe, general: str, own: str) -> bool:
    """Whether KL acts in the loss alone, with a value of its own there that differs from the general one."""
    chosen = recipe.value(own)
    return kl_places(recipe) == (False, True) and chosen is not None and chosen != recipe.value(general)


def _has_images(recipe: Recipe) -> bool:
    """Or may have: a recipe that makes no data of its own reads somebody's, which is looked at later."""
    return recipe.worker.rollout.limit_images > 0 or not recipe.prepare


A, W, ROLES = "algorithm", "worker.actor", ("actor", "critic")
READINGS = (
    Reading(
        (f"{A}.kl_coef", f"{A}.kl_penalty", f"{A}.kl_loss_coef", f"{A}.kl_loss_type"),
        f"{A}.disable_kl",
        lambda recipe: not recipe.algorithm.disable_kl,
        "there is no KL",
        "set DISABLE_KL=false, or leave it out",
    ),
    Reading(
        (f"{A}.kl_loss_coef", f"{A}.kl_loss_type"),
        f"{A}.use_kl_loss",
        lambda recipe: recipe.algorithm.use_kl_loss,
        "KL is not in the loss",
        "set USE_KL_LOSS=true, or give the weight of KL in the reward as KL_COEF",
    ),
    Reading(
        (f"{A}.kl_coef",),
        f"{A}.kl_loss_coef",
        lambda recipe: not _own_in_loss(recipe, f"{A}.kl_coef", f"{A}.kl_loss_coef"),
        "KL is in the loss, with a weight of its own, algorithm.kl_loss_coef",
        "set KL_LOSS_COEF instead",
    ),
    Reading(
        (f"{A}.kl_penalty",),
        f"{A}.kl_loss_type",
        lambda recipe: not _own_in_loss(recipe, f"{A}.kl_penalty", f"{A}.kl_loss_type"),
        "KL is in the loss, with an estimator of its own, algorithm.kl_loss_type",
        "set KL_LOSS_TYPE instead",
    ),
    Reading(
        (f"{A}.kl_type", f"{A}.kl_horizon", f"{A}.kl_target"),
        f"{A}.use_kl_in_reward",
        lambda recipe: kl_places(recipe)[0],
        "KL is not in the reward, whose weight alone has a controller",
        "set USE_KL_LOSS=false, or leave it out",
    ),
    Reading(
        (f"{A}.kl_horizon", f"{A}.kl_target"),
        f"{A}.kl_type",
        lambda recipe: recipe.algorithm.kl_type == "adaptive",
        "the weight of KL is fixed",
        "set algorithm.kl_type to adaptive, or leave it out",
    ),
    Reading(
        (f"{A}.gamma",),
        f"{A}.adv_estimator",
        lambda recipe: recipe.algorithm.adv_estimator in ("gae", "reinforce_plus_plus"),
        "algorithm.adv_estimator {} discounts nothing",
        "set ALGORITHM=ppo or reinforce_plus_plus, or leave it out",
    ),
    Reading(
        (f"{A}.lam",),
        f"{A}.adv_estimator",
        lambda recipe: recipe.algorithm.adv_estimator == "gae",
        "algorithm.adv_estimator is not gae",
        "set ALGORITHM=ppo, or leave it out",
    ),
    Reading(
        ("worker.critic.*",),
        f"{A}.adv_estimator",
        lambda recipe: recipe.algorithm.adv_estimator == "gae",
        "algorithm.adv_estimator {} has no critic",
        "set ALGORITHM=ppo, or leave it out",
    ),
    Reading(
        (f"{A}.norm_adv_by_std",),
        f"{A}.adv_estimator",
        lambda recipe: recipe.algorithm.norm_adv_by_std or recipe.algorithm.adv_estimator in BY_DEVIATION,
        "algorithm.adv_estimator {} divides by no group's deviation",
        "set ALGORITHM=dr_grpo, or leave it out",
    ),
    Reading(
        (f"{A}.filter_key", f"{A}.filter_low", f"{A}.filter_high"),
        f"{A}.online_filtering",
        lambda recipe: recipe.algorithm.online_filtering,
        "no groups are dropped",
        "set ONLINE_FILTERING=true, or leave it out",
    ),
    Reading(
        (f"{W}.loss_scale_factor",),
        f"{W}.loss_agg_mode",
        lambda recipe: recipe.worker.actor.loss_agg_mode == CONSTANT_LENGTH,
        f"only worker.actor.loss_agg_mode {CONSTANT_LENGTH} divides by it",
        f"set LOSS_AGG_MODE={CONSTANT_LENGTH}, or leave it out",
    ),
    *(
        Reading(
            (f"worker.{role}.model.lora.*",),
            f"worker.{role}.model.lora.rank",
            lambda recipe, role=role: recipe.value(f"worker.{role}.model.lora.rank") > 0,
            f"worker.{role}.model.lora.rank is {{}}: all weights are trained",
            "set LORA_RANK, or leave it out" if role == "actor" else "set that rank, or leave it out",
        )
        for role in ROLES
    ),
    *(
        Reading(
            (f"worker.{role}.max_token_len_per_device",),
            f"worker.{role}.dynamic_batching",
            lambda recipe, role=role: recipe.value(f"worker.{role}.dynamic_batching"),
            f"worker.{role}.dynamic_batching is {{}}: a pass holds a number of responses, not of tokens",
            f"set worker.{role}.dynamic_batching to true, or leave it out",
        )
        for role in ROLES
    ),
    Reading(
        ("data.min_pixels", "data.max_pixels"),
        "worker.rollout.limit_images",
        _has_images,
        "worker.rollout.limit_images is 0: prompts are text",
        "set worker.rollout.limit_images to the images of a prompt, or leave it out",
    ),
    Reading(
        tuple(f"worker.reward.overlong_buffer.{name}" for name in ("len", "penalty_factor", "log")),
        "worker.reward.overlong_buffer.enable",
        lambda recipe: recipe.worker.reward.overlong_buffer.enable,
        "no response is judged by its length",
        "set worker.reward.overlong_buffer.enable to true, or leave it out",
    ),
)


def unread(recipe: Recipe) -> Iterator[RecipeError]:
    """Keys of the user without a reader. Others may wait in a file, and what a machine switches off is not a wish."""
    for reading in READINGS:
        decided_by = reading.decided_by
        if reading.read(recipe) or recipe.source_of(decided_by).layer in ("hardware", "embedded"):
            continue
        reason = reading.reason.format(recipe.value(decided_by))
        for path, source in recipe.sources.items():
            if not source.by_user or path == decided_by or not _is_one_of(path, reading.keys):
                continue
            value = recipe.value(path)
            if value is not None:
                yield problem(recipe, f"{path} {value} has no effect: {reason}", reading.fix, path, decided_by)


def _is_one_of(path: str, keys: tuple[str, ...]) -> bool:
    return path in keys or any(key.endswith("*") and path.startswith(key[:-1]) for key in keys)


LOOKS = (
    groups,
    lengths,
    kl,
    combinations,
    clips,
    filtering,
    buffers,
    unread,
)


def check(recipe: Recipe, gpus: int | None = None) -> None:
    """Raise RecipeError for the first combination that the trainer would refuse, or silently change.

    Args:
        recipe: a resolved recipe.
        gpus: GPUs of this machine, where they are known; left out on machines without.
    """
    for found in (machines(recipe, gpus), batches(recipe), problems(recipe)):
        for error in found:
            raise error
    for look in LOOKS:
        for error in look(recipe):
            raise error
