"""Policy losses for steps with a single update: the policy that is trained is the one that sampled.

verl computes the policy's log-probabilities twice a step: once before the update, as the old ones of the ratio, and
once in the update itself. Where a step has a single update over all its responses, both passes use the same weights:
the ratio is always 1. Here the detached log-probabilities of the update replace those of the old pass, and the
gradient is the same up to the rounding of two passes. TRL does so (GRPOTrainer, `num_iterations == 1`).

verl skips the old pass under `algorithm.rollout_correction.bypass_mode`; it hands vLLM's log-probabilities to the loss
in place of the old ones. The losses here use them only to compare vLLM with the trainer.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch

from recipes.engines.verl.translation import ON_POLICY_PREFIX

Loss = Callable[..., tuple[torch.Tensor, dict[str, Any]]]


def on_policy(loss: Loss) -> Loss:
    """A policy loss of verl whose old log-probabilities are the current ones.

    Its `old_log_prob` holds vLLM's log-probabilities (responses, tokens), and its metrics `rollout_corr/...`, which
    verl computes from the old pass otherwise.
    """

    @functools.wraps(loss)
    def from_current(
        old_log_prob: torch.Tensor, log_prob: torch.Tensor, response_mask: torch.Tensor, **kwargs: Any
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        value, metrics = loss(old_log_prob=log_prob.detach(), log_prob=log_prob, response_mask=response_mask, **kwargs)
        return value, {**metrics, **_agreement(log_prob.detach(), old_log_prob, response_mask)}

    return from_current


def _agreement(trainer: torch.Tensor, rollout: torch.Tensor, response_mask: torch.Tensor) -> dict[str, float]:
    """verl's comparison of the trainer's log-probabilities with vLLM's, and the mean difference of probabilities."""
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_corr_metrics_from_logprobs
    from verl.utils.torch_functional import masked_mean

    if not response_mask.any():
        return {}
    difference = masked_mean((trainer.exp() - rollout.exp()).abs(), response_mask).item()
    return {
        **compute_rollout_corr_metrics_from_logprobs(trainer, rollout, response_mask),
        "training/rollout_probs_diff_mean": difference,
    }


@functools.cache
def register() -> None:
    """Register an on-policy form of each of verl's policy losses."""
    from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY, register_policy_loss

    for name, loss in list(POLICY_LOSS_REGISTRY.items()):
        if name != "bypass_mode":
            register_policy_loss(ON_POLICY_PREFIX + name)(on_policy(loss))
