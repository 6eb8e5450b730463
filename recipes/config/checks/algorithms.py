"""Keys of an algorithm that contradict each other or change nothing, and remarks on those that hardly do."""

from __future__ import annotations

from collections.abc import Iterator

from recipes.config.accounting import accounting
from recipes.config.checks.problem import problem
from recipes.config.schema import Recipe
from recipes.errors import RecipeError

BY_DEVIATION = ("grpo", "grpo_passk", "grpo_vectorized")
GSPO = ("gspo", "gspo_token")
CONSTANT_LENGTH = "seq-mean-token-sum-norm"
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


def critics(recipe: Recipe) -> Iterator[RecipeError]:
    """Keys of a critic that is not there."""
    estimator = recipe.algorithm.adv_estimator
    given = [path for path, source in recipe.sources.items() if path.startswith("worker.critic.") and source.by_user]
    if estimator != "gae" and given:
        yield problem(
            recipe,
            f"{given[0]} has no effect: algorithm.adv_estimator {estimator} has no critic",
            "set ALGORITHM=ppo, or leave it out",
            given[0],
            "algorithm.adv_estimator",
        )


def unread(recipe: Recipe) -> Iterator[RecipeError]:
    """What the user asked for in this run, and what nothing reads with the other keys."""
    algorithm, actor = recipe.algorithm, recipe.worker.actor
    if not algorithm.norm_adv_by_std and algorithm.adv_estimator not in BY_DEVIATION and _asked(recipe, "norm"):
        yield problem(
            recipe,
            f"algorithm.norm_adv_by_std false has no effect: {algorithm.adv_estimator} divides by no group's deviation",
            "set ALGORITHM=dr_grpo, or leave it out",
            "algorithm.norm_adv_by_std",
            "algorithm.adv_estimator",
        )
    if actor.loss_scale_factor is not None and actor.loss_agg_mode != CONSTANT_LENGTH and _asked(recipe, "scale"):
        yield problem(
            recipe,
            f"worker.actor.loss_scale_factor {actor.loss_scale_factor} has no effect: "
            f"only worker.actor.loss_agg_mode {CONSTANT_LENGTH} divides by it",
            f"set LOSS_AGG_MODE={CONSTANT_LENGTH}, or leave it out",
            "worker.actor.loss_scale_factor",
            "worker.actor.loss_agg_mode",
        )


def _asked(recipe: Recipe, key: str) -> bool:
    paths = {"norm": "algorithm.norm_adv_by_std", "scale": "worker.actor.loss_scale_factor"}
    return recipe.source_of(paths[key]).by_user


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
