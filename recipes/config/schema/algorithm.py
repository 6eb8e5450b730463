"""Keys under `algorithm`."""

from __future__ import annotations

from typing import Literal

from recipes.config.schema.conversions import FILTER_KEY
from recipes.config.schema.field import Section, key, only_easyr1, only_verl

AdvantageEstimator = Literal[
    "gae",
    "grpo",
    "grpo_passk",
    "reinforce_plus_plus",
    "remax",
    "rloo",
    "reinforce_plus_plus_baseline",
    "opo",
    "gpg",
    "grpo_vectorized",
    "rloo_vectorized",
]
EASYR1_ESTIMATORS = ("gae", "grpo", "grpo_passk", "reinforce_plus_plus", "remax", "rloo")
# verl 0.9.1 still lists remax, but its V1 trainer never computes the greedy baseline that remax subtracts.
VERL_ESTIMATORS = tuple(name for name in AdvantageEstimator.__args__ if name != "remax")  # type: ignore[attr-defined]

KlPenalty = Literal["kl", "abs", "mse", "low_var_kl", "full", "kl+", "low_var_kl+"]
VERL_PENALTIES = ("kl", "abs", "mse", "low_var_kl", "kl+", "low_var_kl+")  # "full" raises NotImplementedError there
EASYR1_PENALTIES = ("kl", "abs", "mse", "low_var_kl", "full")


class Algorithm(Section):
    """How rewards become advantages, and where the KL term acts."""

    preset: str | None = key(
        None, "an algorithm's name: sets the keys of configs/algorithms/NAME.yaml, which other keys then change"
    )
    gamma: float = key(1.0, "discount of GAE", verl="algorithm.gamma", ge=0, le=1)
    lam: float = key(1.0, "lambda of GAE", verl="algorithm.lam", ge=0, le=1)
    adv_estimator: AdvantageEstimator = key(
        "grpo",
        "advantage estimator",
        verl="algorithm.adv_estimator",
        values_on={"easyr1": EASYR1_ESTIMATORS, "verl": VERL_ESTIMATORS},
    )
    norm_adv_by_std: bool = key(
        True,
        "divide the group's advantages by its standard deviation (false: Dr.GRPO)",
        verl="algorithm.norm_adv_by_std_in_grpo",
        not_on=only_verl("EasyR1 always divides by the deviation"),
    )
    disable_kl: bool = key(
        False,
        "no KL term and no reference model",
        verl=("algorithm.use_kl_in_reward", "actor_rollout_ref.actor.use_kl_loss"),
        computed=True,
    )
    use_kl_loss: bool = key(
        False,
        "KL is a term of the loss; false: it is taken from the reward",
        verl="actor_rollout_ref.actor.use_kl_loss",
        computed=True,
        alias=True,
    )
    use_kl_in_reward: bool | None = key(
        None,
        "take KL from the reward; null: unless it is in the loss; true beside use_kl_loss: both",
        verl="algorithm.use_kl_in_reward",
        computed=True,
        not_on=only_verl("EasyR1 has one place for KL, chosen by use_kl_loss"),
    )
    kl_penalty: KlPenalty = key(
        "kl",
        "estimator of KL; kl (k1) is right in the reward, low_var_kl (k3) in the loss",
        verl=("algorithm.kl_penalty", "actor_rollout_ref.actor.kl_loss_type"),
        computed=True,
        values_on={"verl": VERL_PENALTIES, "easyr1": EASYR1_PENALTIES},
    )
    kl_coef: float = key(
        1e-3,
        "weight of KL, wherever it acts",
        verl=("algorithm.kl_ctrl.kl_coef", "actor_rollout_ref.actor.kl_loss_coef"),
        computed=True,
        alias=True,
        ge=0,
    )
    kl_loss_coef: float | None = key(
        None,
        "weight of KL in the loss; null: kl_coef",
        verl="actor_rollout_ref.actor.kl_loss_coef",
        computed=True,
        alias=True,
        ge=0,
    )
    kl_loss_type: KlPenalty | None = key(
        None,
        "estimator of KL in the loss; null: kl_penalty",
        verl="actor_rollout_ref.actor.kl_loss_type",
        computed=True,
        alias=True,
        values_on={"verl": (None, *VERL_PENALTIES), "easyr1": (None, *EASYR1_PENALTIES)},
    )
    kl_type: Literal["fixed", "adaptive"] = key(
        "fixed", "controller of the weight of KL in the reward", verl="algorithm.kl_ctrl.type"
    )
    kl_horizon: float = key(
        10000.0, "horizon of the adaptive controller, in responses", verl="algorithm.kl_ctrl.horizon", gt=0
    )
    kl_target: float = key(0.1, "KL that the adaptive controller aims at", verl="algorithm.kl_ctrl.target_kl", gt=0)
    online_filtering: bool = key(
        False, "drop groups that give no signal and generate others (DAPO)", verl="algorithm.filter_groups.enable"
    )
    filter_key: str = key(
        "overall",
        "reward part that decides whether a group is dropped",
        verl="algorithm.filter_groups.metric",
        convert=FILTER_KEY,
    )
    filter_low: float = key(
        0.01,
        "drop groups whose mean is not above this",
        not_on=only_easyr1("verl drops a group when all its values are equal, whatever they are"),
    )
    filter_high: float = key(
        0.99,
        "drop groups whose mean is not below this",
        not_on=only_easyr1("verl drops a group when all its values are equal, whatever they are"),
    )
