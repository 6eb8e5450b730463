"""Batches: what a step costs in prompts, responses, updates and tokens, and which sizes divide each other."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from recipes.config.schema import Recipe, Setting, Source
from recipes.config.schema.keys import settled
from recipes.errors import RecipeError


@dataclass(frozen=True)
class Accounting:
    """The arithmetic of a recipe. Batch sizes of verl and EasyR1 count prompts; an update sees prompts x n responses.

    Attributes:
        prompts, responses, updates: number of each in one step; `updates` counts those of all `ppo_epochs`.
        responses_per_gpu: responses that one data-parallel rank computes for an update.
        accumulation_steps: forward and backward passes of a GPU for one update. With dynamic batching (`dynamic`) this
            is an upper bound, reached when every response has full length.
        steps_per_epoch: full steps of one epoch; rows that do not fill a step are dropped.
        tokens_per_step: an upper bound, reached when every prompt and response has full length.
    """

    rows: int
    prompts: int
    responses: int
    updates: int
    responses_per_gpu: int
    accumulation_steps: int
    dynamic: bool
    steps_per_epoch: int
    total_steps: int
    tokens_per_step: int

    def table(self) -> list[tuple[str, str]]:
        """Rows of name and value in words, for printing."""
        most = "at most " if self.dynamic else ""
        return [
            ("training rows", f"{self.rows:,}"),
            ("prompts per step", f"{self.prompts:,}"),
            ("responses per step", f"{self.responses:,}"),
            ("updates per step", f"{self.updates:,}"),
            ("responses per update and GPU", f"{self.responses_per_gpu:,}"),
            ("gradient-accumulation steps per update", f"{most}{self.accumulation_steps:,}"),
            ("steps per epoch", f"{self.steps_per_epoch:,}"),
            ("total steps", f"{self.total_steps:,}"),
            ("tokens per step", f"at most {self.tokens_per_step:,}"),
        ]


def data_parallel(recipe: Recipe) -> int:
    """Number of data-parallel ranks: the GPUs divided by those that share a sequence."""
    return max(1, recipe.n_gpus // recipe.worker.actor.ulysses_size)


def accounting(recipe: Recipe, rows: int) -> Accounting:
    """Count what a recipe does with `rows` training rows (0 where they are not known yet)."""
    data, actor, rollout, trainer = recipe.data, recipe.worker.actor, recipe.worker.rollout, recipe.trainer
    prompts = data.rollout_batch_size
    responses = prompts * rollout.n
    updated = settled(actor.global_batch_size)
    per_gpu = math.ceil(updated * rollout.n / data_parallel(recipe))
    used = min(rows, data.train_max_samples) if data.train_max_samples > 0 else rows
    steps_per_epoch = used // prompts
    total = trainer.max_steps if trainer.max_steps is not None else steps_per_epoch * trainer.total_epochs
    return Accounting(
        rows=used,
        prompts=prompts,
        responses=responses,
        updates=max(1, prompts // updated) * actor.ppo_epochs,
        responses_per_gpu=per_gpu,
        accumulation_steps=math.ceil(per_gpu / _responses_of_a_pass(recipe)),
        dynamic=actor.dynamic_batching,
        steps_per_epoch=steps_per_epoch,
        total_steps=total,
        tokens_per_step=responses * (data.max_prompt_length + data.max_response_length),
    )


def _responses_of_a_pass(recipe: Recipe) -> int:
    """Responses of full length in one forward and backward pass of a GPU."""
    actor = recipe.worker.actor
    if not (actor.dynamic_batching and actor.max_token_len_per_device):
        return settled(actor.micro_batch_size_per_device_for_update)
    return max(1, actor.max_token_len_per_device * actor.ulysses_size // recipe.longest)


def nearest(number: int, fitting: Iterable[int]) -> str:
    """The nearest numbers in the ascending `fitting`, one at or below `number` and one above, in words: `4 or 8`."""
    candidates = list(fitting)
    at = bisect_right(candidates, number)
    return " or ".join(str(candidate) for candidate in candidates[max(0, at - 1) : at + 1])


def divisors(number: int) -> list[int]:
    """Every divisor of a number, rising."""
    return [size for size in range(1, number + 1) if number % size == 0]


_STEP, _UPDATE = "data.rollout_batch_size", "worker.actor.global_batch_size"
_MICRO = "worker.actor.micro_batch_size_per_device_for_"


def problems(recipe: Recipe) -> Iterator[RecipeError]:
    """Batch sizes that do not divide each other, with the nearest that do."""
    step, n = recipe.data.rollout_batch_size, recipe.worker.rollout.n
    actor = recipe.worker.actor
    size, ranks = settled(actor.global_batch_size), data_parallel(recipe)
    if step % size:
        yield recipe.error(
            f"{_STEP} {step} is not a multiple of {_UPDATE} {size} prompts",
            f"set {_UPDATE} to {nearest(size, divisors(step))}",
            _STEP,
            _UPDATE,
        )
    if size * n % ranks:
        fitting = [candidate for candidate in range(1, size + ranks + 1) if candidate * n % ranks == 0]
        yield recipe.error(
            f"{_UPDATE} {size} x worker.rollout.n {n} = {size * n} responses do not divide over "
            f"{ranks} data-parallel ranks",
            f"set {_STEP} and {_UPDATE} to {nearest(size, fitting)}",
            _UPDATE,
            "worker.rollout.n",
            "trainer.n_gpus_per_node",
        )
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
        yield recipe.error(
            f"{whole} {described} are not a multiple of {key} {micro}",
            f"set {key} to {nearest(micro, divisors(whole))}",
            key,
            _UPDATE if use == "update" else _STEP,
        )


MOST_OF_AN_UPDATE, MOST_OF_EXPERIENCE = 4, 8
"""Largest micro-batch sizes, in responses, that take the place of null."""


def filled_batches(recipe: Recipe) -> list[Setting]:
    """Replace null batch sizes: an update takes the whole step; a micro-batch divides a GPU's share of an update."""
    actor, n, step = recipe.worker.actor, recipe.worker.rollout.n, recipe.data.rollout_batch_size

    def micro(prompts: int, most: int) -> int:
        """The largest divisor of a GPU's share up to `most`; `most` where verl fills the passes by tokens."""
        if recipe.engine == "verl" and actor.dynamic_batching:
            return most
        share, rest = divmod(prompts * n, data_parallel(recipe))
        return 1 if rest else max(size for size in range(1, most + 1) if share % size == 0)  # `problems` reports a rest

    values = {
        _UPDATE: step,
        f"{_MICRO}update": micro(actor.global_batch_size or step, MOST_OF_AN_UPDATE),
        f"{_MICRO}experience": micro(step, MOST_OF_EXPERIENCE),
    }
    return [
        Setting(key, value, Source(recipe.source_of(key).layer, f"{recipe.source_of(key)}, where null follows {_STEP}"))
        for key, value in values.items()
        if recipe.value(key) is None
    ]
