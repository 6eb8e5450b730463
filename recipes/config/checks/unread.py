"""What the user asked for in this run and nothing reads with the other keys: each key, and what it takes to be read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from recipes.config.checks.problem import problem
from recipes.config.meaning import CONSTANT_LENGTH, kl_places
from recipes.config.schema import Recipe
from recipes.errors import RecipeError

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
