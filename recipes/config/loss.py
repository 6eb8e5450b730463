"""The policy loss: how it is averaged over tokens and responses, and how its ratio is clipped."""

from __future__ import annotations

from collections.abc import Iterator

from recipes.config.schema import Recipe
from recipes.errors import RecipeError

AVERAGES = {"token": "token-mean", "seq": "seq-mean-token-mean"}
"""loss_avg_mode -> the loss_agg_mode that it stands for."""
CONSTANT_LENGTH = "seq-mean-token-sum-norm"
"""The loss_agg_mode that divides by a constant length instead of each response's."""

GSPO = ("gspo", "gspo_token")
WIDE_FOR_A_RESPONSE = 0.01
"""The mean log-ratio of a response's tokens moves by some 1e-4 in an update: GSPO's paper clips at 3e-4 and 4e-4."""


def average(recipe: Recipe) -> str:
    """The average in verl's words; `loss_agg_mode` wins over the coarser `loss_avg_mode`."""
    actor = recipe.worker.actor
    return actor.loss_agg_mode or AVERAGES[actor.loss_avg_mode]


def constant_length(recipe: Recipe) -> int | None:
    """The length that the loss is divided by; without one verl takes the longest response of each micro-batch."""
    constant = recipe.worker.actor.loss_scale_factor
    return constant or recipe.data.max_response_length if average(recipe) == CONSTANT_LENGTH else constant


def problems(recipe: Recipe) -> Iterator[RecipeError]:
    """Averages that disagree where both were meant, and clips that cannot be meant."""
    names = "worker.actor.loss_avg_mode", "worker.actor.loss_agg_mode"
    coarse, fine = (recipe.value(name) for name in names)
    later = recipe.source_of(names[0]).rank - recipe.source_of(names[1]).rank
    if fine is not None and recipe.source_of(names[0]).layer != "default" and later >= 0:
        contradict = coarse == "seq" and not fine.startswith("seq")
        if contradict or (later > 0 and fine != AVERAGES[coarse]):
            yield recipe.error(
                f"{names[0]} is {coarse}, but {names[1]} is {fine}", f"set one of the two, or {names[1]}=null", *names
            )
    actor = recipe.worker.actor
    low, high = actor.clip_ratio_low, actor.clip_ratio_high
    if actor.loss_type != "cispo" and low > high:  # CISPO's weights may do without a lower bound
        yield recipe.error(
            f"worker.actor.clip_ratio_low {low} is above worker.actor.clip_ratio_high {high}",
            "exchange them; DAPO's are 0.2 and 0.28",
            "worker.actor.clip_ratio_low",
            "worker.actor.clip_ratio_high",
        )
    if recipe.engine == "easyr1" and low > 1:
        yield recipe.error(
            f"EasyR1 takes the logarithm of 1 - worker.actor.clip_ratio_low, which is {low}",
            "set it to 1, which is no lower bound either",
            "worker.actor.clip_ratio_low",
        )


def remarks(recipe: Recipe, updates: int) -> list[str]:
    """Return what runs, but hardly as its name promises; `updates` a step."""
    actor, lines = recipe.worker.actor, []
    if actor.loss_type in GSPO:
        if average(recipe) != AVERAGES["seq"]:
            lines.append(
                f"GSPO has one ratio for a response, but the loss is averaged by {average(recipe)}, so that long "
                "responses weigh more; its paper has worker.actor.loss_avg_mode=seq"
            )
        if actor.clip_ratio_high > WIDE_FOR_A_RESPONSE:
            lines.append(
                f"the ratio of a whole response hardly ever moves by {actor.clip_ratio_high}: nothing will be clipped; "
                "GSPO's paper has CLIP_RATIO_LOW=3e-4 CLIP_RATIO_HIGH=4e-4"
            )
    clips = (f"worker.actor.clip_ratio_{end}" for end in ("low", "high"))
    clipped = recipe.algorithm.preset in ("dapo", "gspo", "cispo") or actor.loss_type != "default"
    if updates == 1 and (clipped or any(recipe.source_of(clip).by_user for clip in clips)):
        lines.append(
            "one update a step: the ratio of new to old policy is 1 and no clip acts; GLOBAL_BATCH_SIZE below "
            "ROLLOUT_BATCH_SIZE makes several"
        )
    return lines
