"""Keys of an algorithm that contradict each other, and remarks on those that hardly change a thing."""

from __future__ import annotations

from collections.abc import Iterator

from recipes.config.accounting import accounting
from recipes.config.checks.problem import problem
from recipes.config.schema import Recipe
from recipes.errors import RecipeError

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
