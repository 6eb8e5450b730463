"""What each algorithm changes in verl's own configuration, composed and checked by verl itself."""

from __future__ import annotations

import pytest
from omegaconf import OmegaConf

from recipes.config import resolve

ACTOR = "actor_rollout_ref.actor"
NEUTRAL = {
    "algorithm.norm_adv_by_std_in_grpo": True,
    "algorithm.filter_groups.enable": False,
    f"{ACTOR}.policy_loss.loss_mode": "vanilla",
    f"{ACTOR}.clip_ratio_low": 0.2,
    f"{ACTOR}.clip_ratio_high": 0.2,
    f"{ACTOR}.loss_agg_mode": "token-mean",
    f"{ACTOR}.loss_scale_factor": None,
    "reward.reward_manager.name": "naive",
}
NO_KL = {"algorithm.use_kl_in_reward": False, f"{ACTOR}.use_kl_loss": False}
IN_REWARD = {
    "algorithm.use_kl_in_reward": True,
    f"{ACTOR}.use_kl_loss": False,
    "algorithm.kl_penalty": "kl",
    "algorithm.kl_ctrl.kl_coef": 0.01,
}
IN_LOSS = {"algorithm.use_kl_in_reward": False, f"{ACTOR}.use_kl_loss": True, f"{ACTOR}.kl_loss_coef": 0.01}
BUFFER = "reward.reward_kwargs.overlong_buffer_cfg"
# Countdown's responses have 2,048 tokens at most, and its KL the weight 0.01.
EXPECTED = {
    "grpo": {
        "algorithm.adv_estimator": "grpo",
        **IN_LOSS,
        f"{ACTOR}.kl_loss_type": "low_var_kl",
        f"{ACTOR}.loss_agg_mode": "seq-mean-token-mean",
    },
    "dr_grpo": {
        "algorithm.adv_estimator": "grpo",
        **NO_KL,
        "algorithm.norm_adv_by_std_in_grpo": False,
        f"{ACTOR}.loss_agg_mode": "seq-mean-token-sum-norm",
        f"{ACTOR}.loss_scale_factor": 2048,
    },
    "dapo": {
        "algorithm.adv_estimator": "grpo",
        **NO_KL,
        f"{ACTOR}.clip_ratio_high": 0.28,
        "algorithm.filter_groups.enable": True,
        "algorithm.filter_groups.metric": "accuracy",
        "reward.reward_manager.name": "dapo",
        "reward.reward_kwargs.max_resp_len": 2048,
        f"{BUFFER}.enable": True,
        f"{BUFFER}.len": 409,
        f"{BUFFER}.penalty_factor": 1.0,
    },
    "gspo": {
        "algorithm.adv_estimator": "grpo",
        **NO_KL,
        f"{ACTOR}.policy_loss.loss_mode": "gspo",
        f"{ACTOR}.clip_ratio_low": 3e-4,
        f"{ACTOR}.clip_ratio_high": 4e-4,
        f"{ACTOR}.loss_agg_mode": "seq-mean-token-mean",
    },
    "cispo": {
        "algorithm.adv_estimator": "grpo",
        **NO_KL,
        f"{ACTOR}.policy_loss.loss_mode": "cispo",
        f"{ACTOR}.clip_ratio_low": 1.0,
        f"{ACTOR}.clip_ratio_high": 4.0,
    },
    "reinforce_plus_plus": {"algorithm.adv_estimator": "reinforce_plus_plus", **IN_REWARD},
    "reinforce_plus_plus_baseline": {
        "algorithm.adv_estimator": "reinforce_plus_plus_baseline",
        **IN_LOSS,
        f"{ACTOR}.kl_loss_type": "mse",
    },
    "rloo": {"algorithm.adv_estimator": "rloo", **IN_REWARD},
    "ppo": {"algorithm.adv_estimator": "gae", **IN_REWARD, "critic.optim.lr": 1e-5},
}


def test_every_algorithm_is_here():
    assert sorted(EXPECTED) == resolve.algorithms()


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_an_algorithm_sets_verls_keys_and_verl_accepts_them(composed, name):
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    config = composed(name)
    wanted = {**NEUTRAL, **EXPECTED[name]}
    assert {key: OmegaConf.select(config, key) for key in wanted} == wanted
    with_kl = wanted["algorithm.use_kl_in_reward"] or wanted[f"{ACTOR}.use_kl_loss"]
    assert (need_critic(config), need_reference_policy(config)) == (name == "ppo", with_kl)
    validate_config(config, need_reference_policy(config), need_critic(config))
    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    assert actor.policy_loss.loss_mode == wanted[f"{ACTOR}.policy_loss.loss_mode"]
    assert actor.loss_scale_factor == wanted[f"{ACTOR}.loss_scale_factor"]


@pytest.mark.parametrize("hardware", ["cpu", "gpu"])
def test_a_critic_is_laid_out_as_the_actor(composed, hardware):
    config = composed("ppo", "worker.actor.offload.offload_optimizer=true", hardware=hardware)
    actor, critic = config.actor_rollout_ref.actor, config.critic
    for key in ("ppo_mini_batch_size", "ppo_micro_batch_size_per_gpu", "use_dynamic_bsz", "strategy", "ppo_epochs"):
        assert actor[key] == critic[key], key
    assert critic.fsdp.optimizer_offload
    assert critic.model.path == config.actor_rollout_ref.model.path
    assert critic.optim.lr == 1e-5
    if hardware == "cpu":
        assert critic.fsdp.mixed_precision.param_dtype == "fp32"
        assert critic.model.external_lib == config.actor_rollout_ref.model.external_lib


def test_what_the_user_says_wins_over_the_algorithm(composed):
    config = composed("dapo", "worker.actor.clip_ratio_high=0.5", "worker.reward.overlong_buffer.len=100")
    assert config.actor_rollout_ref.actor.clip_ratio_high == 0.5
    assert OmegaConf.select(config, f"{BUFFER}.len") == 100
    native = composed("gspo", "actor_rollout_ref.actor.loss_agg_mode=token-mean")
    assert native.actor_rollout_ref.actor.loss_agg_mode == "token-mean"
    constant = composed("dr_grpo", "actor_rollout_ref.actor.loss_scale_factor=512")
    assert constant.actor_rollout_ref.actor.loss_scale_factor == 512
