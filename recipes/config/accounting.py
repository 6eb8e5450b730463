"""Batches: what a step costs in prompts, responses, updates and tokens, and which sizes divide each other."""

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator

from recipes.config.schema import Recipe, Setting, Source
from recipes.errors import RecipeError
from recipes.settings import require_resolved


def data_parallel(recipe: Recipe) -> int:
    """Number of data-parallel ranks: the GPUs divided by those that share a sequence."""
    return max(1, recipe.n_gpus // recipe.worker.actor.ulysses_size)


def used_rows(recipe: Recipe, rows: int) -> int:
    """The training rows, of so many, that a run reads."""
    most = recipe.data.train_max_samples
    return min(rows, most) if most > 0 else rows


def updates(recipe: Recipe) -> int:
    """Updates of one step, in all `ppo_epochs`."""
    actor = recipe.worker.actor
    return max(1, recipe.data.rollout_batch_size // require_resolved(actor.global_batch_size)) * actor.ppo_epochs


def total_steps(recipe: Recipe, rows: int) -> int:
    """Steps of a run over so many training rows; rows that do not fill a step are dropped in every epoch."""
    steps = used_rows(recipe, rows) // recipe.data.rollout_batch_size * recipe.trainer.total_epochs
    return steps if recipe.trainer.max_steps is None else recipe.trainer.max_steps


def accounting(recipe: Recipe, rows: int) -> dict[str, str]:
    """Sizes of a step and of the run over `rows` training rows (0 where they are not known yet), in words.

    Batch sizes of verl and EasyR1 count prompts; an update sees prompts x n responses. The bounds are reached when
    every prompt and response has full length.
    """
    prompts, actor, n = recipe.data.rollout_batch_size, recipe.worker.actor, recipe.worker.rollout.n
    used = used_rows(recipe, rows)
    per_gpu = math.ceil(require_resolved(actor.global_batch_size) * n / data_parallel(recipe))
    if actor.dynamic_batching and actor.max_token_len_per_device:
        of_a_pass = max(1, actor.max_token_len_per_device * actor.ulysses_size // recipe.longest)
    else:
        of_a_pass = require_resolved(actor.micro_batch_size_per_device_for_update)
    passes = math.ceil(per_gpu / of_a_pass)
    return {
        "training rows": f"{used:,}",
        "prompts per step": f"{prompts:,}",
        "responses per step": f"{prompts * n:,}",
        "updates per step": f"{updates(recipe):,}",
        "responses per update and GPU": f"{per_gpu:,}",
        "gradient-accumulation steps per update": f"{'at most ' * actor.dynamic_batching}{passes:,}",
        "steps per epoch": f"{used // prompts:,}",
        "total steps": f"{total_steps(recipe, rows):,}",
        "tokens per step": f"at most {prompts * n * recipe.longest:,}",
    }


def nearest(number: int, fitting: Iterable[int]) -> str:
    """The nearest numbers in the ascending `fitting`, one at or below `number` and one above, in words: `4 or 8`."""
    candidates = list(fitting)
    at = bisect_right(candidates, number)
    return " or ".join(map(str, candidates[max(0, at - 1) : at + 1]))


def divisors(number: int) -> list[int]:
    """Every divisor of a number, in ascending order."""
    return [size for size in range(1, number + 1) if number % size == 0]


_STEP, _UPDATE = "data.rollout_batch_size", "worker.actor.global_batch_size"
_MICRO = "worker.actor.micro_batch_size_per_device_for_"


def problems(recipe: Recipe) -> Iterator[RecipeError]:
    """Batch sizes that do not divide each other, with the nearest that do."""
    step, n = recipe.data.rollout_batch_size, recipe.worker.rollout.n
    actor = recipe.worker.actor
    size, ranks = require_resolved(actor.global_batch_size), data_parallel(recipe)
    if step % size:
        what = f"{_STEP} {step} is not a multiple of {_UPDATE} {size} prompts"
        yield recipe.error(what, f"set {_UPDATE} to {nearest(size, divisors(step))}", _STEP, _UPDATE)
    if size * n % ranks:
        fitting = [candidate for candidate in range(1, size + ranks + 1) if candidate * n % ranks == 0]
        responses = f"{_UPDATE} {size} x worker.rollout.n {n} = {size * n} responses"
        what = f"{responses} do not divide over {ranks} data-parallel ranks"
        fix = f"set {_STEP} and {_UPDATE} to {nearest(size, fitting)}"
        yield recipe.error(what, fix, _UPDATE, "worker.rollout.n", "trainer.n_gpus_per_node")
        return
    if recipe.engine == "easyr1" or not actor.dynamic_batching:
        yield from _micro_batches(recipe, "update", size * n // ranks, "responses per GPU and update")
    if recipe.engine == "easyr1":  # EasyR1 divides by the sizes even with dynamic batching
        yield from _micro_batches(recipe, "experience", step * n, "responses a step")
    if not actor.dynamic_batching:
        yield from _micro_batches(recipe, "experience", step * n // ranks, "responses per GPU and step")


def _micro_batches(recipe: Recipe, use: str, whole: int, described: str) -> Iterator[RecipeError]:
    """Both engines cut a GPU's responses into whole micro-batches, for updates as well as for log-probabilities."""
    key = f"{_MICRO}{use}"
    micro = recipe.value(key)
    if whole % micro:
        what = f"{whole} {described} are not a multiple of {key} {micro}"
        fix = f"set {key} to {nearest(micro, divisors(whole))}"
        yield recipe.error(what, fix, key, _UPDATE if use == "update" else _STEP)


def filled_batches(recipe: Recipe) -> list[Setting]:
    """Replace null batch sizes: an update takes the whole step; a micro-batch divides a GPU's share of an update, or
    for log-probabilities its share of the step, unless verl fills the passes by tokens."""
    actor, n, step = recipe.worker.actor, recipe.worker.rollout.n, recipe.data.rollout_batch_size

    def micro(prompts: int, most: int) -> int:
        """The largest divisor of a GPU's share up to `most`; `most` where verl fills the passes by tokens."""
        if recipe.engine == "verl" and actor.dynamic_batching:
            return most
        share, rest = divmod(prompts * n, data_parallel(recipe))
        return 1 if rest else max(size for size in range(1, most + 1) if share % size == 0)  # `problems` reports a rest

    values = {
        _UPDATE: step,
        f"{_MICRO}update": micro(actor.global_batch_size or step, 4),
        f"{_MICRO}experience": micro(step, 8),
    }
    return [
        Setting(key, value, Source(recipe.source_of(key).layer, f"{recipe.source_of(key)}, where null follows {_STEP}"))
        for key, value in values.items()
        if recipe.value(key) is None
    ]
