"""What a step costs, in prompts, responses, updates, accumulation steps and tokens."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from recipes.config.schema import Recipe


@dataclass(frozen=True)
class Accounting:
    """The arithmetic of a recipe. Batch sizes of verl and EasyR1 count prompts; an update sees prompts x n responses.

    Attributes:
        rows: training rows.
        prompts: prompts a step.
        responses: responses a step.
        responses_per_update: responses that one optimiser update sees.
        updates: optimiser updates a step, all epochs over the step's responses included.
        responses_per_gpu: responses that one data-parallel rank computes for an update.
        accumulation_steps: forward and backward passes of a GPU for one update. With dynamic batching this is the most
            it can be, reached when every response has full length.
        dynamic: whether micro-batches are filled by tokens.
        steps_per_epoch: steps for one pass over the rows; rows that do not fill a step are dropped.
        total_steps: steps of the run.
        tokens_per_step: tokens of a step when every prompt and response has full length: an upper bound.
        response_tokens_per_step: the part of it that is generated.
    """

    rows: int
    prompts: int
    responses: int
    responses_per_update: int
    updates: int
    responses_per_gpu: int
    accumulation_steps: int
    dynamic: bool
    steps_per_epoch: int
    total_steps: int
    tokens_per_step: int
    response_tokens_per_step: int

    def table(self) -> list[tuple[str, str]]:
        """Rows of name and value in words, for printing."""
        most = "at most " if self.dynamic else ""
        return [
            ("training rows", f"{self.rows:,}"),
            ("prompts per step", f"{self.prompts:,}"),
            ("responses per step", f"{self.responses:,}"),
            ("updates per step", f"{self.updates:,}"),
            ("responses per update", f"{self.responses_per_update:,}"),
            ("responses per update and GPU", f"{self.responses_per_gpu:,}"),
            ("gradient-accumulation steps per update", f"{most}{self.accumulation_steps:,}"),
            ("steps per epoch", f"{self.steps_per_epoch:,}"),
            ("total steps", f"{self.total_steps:,}"),
            ("tokens per step", f"at most {self.tokens_per_step:,}"),
            ("generated tokens per step", f"at most {self.response_tokens_per_step:,}"),
        ]

    def as_dict(self) -> dict[str, int | bool]:
        return asdict(self)


def accounting(recipe: Recipe, rows: int) -> Accounting:
    """Count what a recipe does with `rows` training rows (0 where they are not known yet)."""
    data, actor, rollout, trainer = recipe.data, recipe.worker.actor, recipe.worker.rollout, recipe.trainer
    prompts = data.rollout_batch_size
    responses = prompts * rollout.n
    per_update = actor.global_batch_size * rollout.n
    data_parallel = max(1, recipe.n_gpus // actor.ulysses_size)
    per_gpu = math.ceil(per_update / data_parallel)
    used = min(rows, data.train_max_samples) if data.train_max_samples > 0 else rows
    steps_per_epoch = used // prompts
    total = trainer.max_steps if trainer.max_steps is not None else steps_per_epoch * trainer.total_epochs
    return Accounting(
        rows=used,
        prompts=prompts,
        responses=responses,
        responses_per_update=per_update,
        updates=max(1, prompts // actor.global_batch_size) * actor.ppo_epochs,
        responses_per_gpu=per_gpu,
        accumulation_steps=math.ceil(per_gpu / _responses_of_a_pass(recipe)),
        dynamic=actor.dynamic_batching,
        steps_per_epoch=steps_per_epoch,
        total_steps=total,
        tokens_per_step=responses * (data.max_prompt_length + data.max_response_length),
        response_tokens_per_step=responses * data.max_response_length,
    )


def _responses_of_a_pass(recipe: Recipe) -> int:
    """Responses of full length in one forward and backward pass of a GPU."""
    actor, data = recipe.worker.actor, recipe.data
    if not (actor.dynamic_batching and actor.max_token_len_per_device):
        return actor.micro_batch_size_per_device_for_update
    tokens = actor.max_token_len_per_device * actor.ulysses_size
    return max(1, tokens // (data.max_prompt_length + data.max_response_length))
