"""What a step costs in prompts, responses, updates and tokens, in words."""

from __future__ import annotations

import math

from recipes.config import Recipe, total_steps
from recipes.config.accounting import data_parallel, updates, used_rows
from recipes.settings.keys import require_resolved


def accounting(recipe: Recipe, rows: int) -> dict[str, str]:
    """What a recipe does with `rows` training rows (0 where they are not known yet): names and values in words.

    Batch sizes of verl and EasyR1 count prompts; an update sees prompts x n responses. The bounds are reached when
    every prompt and response has full length.
    """
    prompts, actor, n = recipe.data.rollout_batch_size, recipe.worker.actor, recipe.worker.rollout.n
    used, per_gpu = (
        used_rows(recipe, rows),
        math.ceil(require_resolved(actor.global_batch_size) * n / data_parallel(recipe)),
    )
    passes = math.ceil(per_gpu / _responses_of_a_pass(recipe))
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


def _responses_of_a_pass(recipe: Recipe) -> int:
    """Responses of full length in one forward and backward pass of a GPU."""
    actor = recipe.worker.actor
    if not (actor.dynamic_batching and actor.max_token_len_per_device):
        return require_resolved(actor.micro_batch_size_per_device_for_update)
    return max(1, actor.max_token_len_per_device * actor.ulysses_size // recipe.longest)
