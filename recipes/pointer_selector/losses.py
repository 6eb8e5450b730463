"""The two losses: reward-conditioned cross-entropy, and GRPO's clipped surrogate with a k3 penalty.

Shapes: B groups (one query at one shot count), N candidates a group (padded), S picks (padded).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

LARGEST_LOG_RATIO = 20.0
"""exp(20) is 5e8; beyond it a ratio says nothing and can only overflow."""


def rce_weights(rewards: Tensor, mask: Tensor, tau: float) -> Tensor:
    """softmax(reward / tau) over a group's candidates: rewards [B, N], mask [B, N] -> [B, N], 0 where masked."""
    return (rewards / tau).masked_fill(~mask, float("-inf")).softmax(-1)


def rce_loss(log_probs: Tensor, steps: Tensor, rewards: Tensor, mask: Tensor, tau: float) -> Tensor:
    """Reward-conditioned cross-entropy: -sum_i softmax(reward / tau)_i log pi(candidate i), mean over groups and picks.

    Args:
        log_probs: [B, N, S], 0 at padding.
        steps: [B, N, S], true where a candidate has a pick; all candidates of a group have as many.
        rewards: [B, N].
        mask: [B, N], true where there is a candidate.
        tau: temperature of the weights; a high one treats all candidates alike.
    """
    lengths = steps.sum(-1).clamp(min=1)
    return -(rce_weights(rewards, mask, tau) * log_probs.sum(-1) / lengths).sum(-1).mean()


@dataclass(frozen=True)
class GrpoTerms:
    """What one GRPO update says about itself; `loss` carries the gradient, the others are detached scalars."""

    loss: Tensor
    policy: Tensor
    kl: Tensor
    ratio_mean: Tensor
    ratio_max: Tensor
    clip_fraction: Tensor
    approximate_kl: Tensor


def k3(log_probs: Tensor, reference: Tensor) -> Tensor:
    """Schulman's k3 estimate of KL(policy || reference), r - 1 - log r with r = reference / policy; never negative.

    Source: J. Schulman, "Approximating KL divergence" (2020); Shao et al., DeepSeekMath (2024), equation 4. It is
    unbiased for samples of the policy. Over logged candidates it is a penalty, not an estimate.
    """
    log_ratio = (reference - log_probs).clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO)
    return log_ratio.exp() - 1 - log_ratio


def grpo_loss(
    log_probs: Tensor,
    old: Tensor,
    reference: Tensor,
    advantages: Tensor,
    steps: Tensor,
    mask: Tensor,
    *,
    clip: float,
    kl_beta: float,
    level: str = "sequence",
    kl_over: str = "logged",
) -> GrpoTerms:
    """GRPO: PPO's clipped surrogate with group-relative advantages, plus beta times k3 against the warm-up policy.

    Args:
        log_probs: [B, N, S] of the policy, 0 at padding.
        old: [B, N, S] of the policy that the epoch began with.
        reference: [B, N, S] of the warm-up policy.
        advantages: [B, N].
        steps: [B, N, S], true where a candidate has a pick.
        mask: [B, N], true where a candidate takes part.
        clip: PPO's epsilon; the ratio is clipped to [1 - clip, 1 + clip].
        kl_beta: weight of k3.
        level: "sequence" takes one ratio a candidate; "step" one a pick, averaged over the candidate's picks first.
        kl_over: "logged" averages k3 over all candidates alike; "policy" weights each by the policy's own probability,
            renormalised within its group and without gradient, which comes nearer to the KL of the policy: under
            "logged", a candidate that the policy rightly gave up costs exp(log-ratio) though it is never picked.

    Source: Shao et al., DeepSeekMath (2024), equation 3, which is level "step".
    """
    own = log_probs.detach().sum(-1).masked_fill(~mask, float("-inf")).softmax(-1) if kl_over == "policy" else None
    if level == "sequence":
        log_probs, old, reference = (x.sum(-1, keepdim=True) for x in (log_probs, old, reference))
        steps = mask[..., None]
    counted = (steps & mask[..., None]).to(log_probs.dtype)
    within = counted / counted.sum(-1, keepdim=True).clamp(min=1)
    weight = within / mask.sum().clamp(min=1)
    kl_weight = weight if own is None else within * (own / len(own))[..., None]

    log_ratio = (log_probs - old).clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO)
    ratio = log_ratio.exp()
    advantage = advantages[..., None]
    unclipped, clipped = ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage
    policy = -(weight * torch.minimum(unclipped, clipped)).sum()
    kl = (kl_weight * k3(log_probs, reference)).sum()

    return GrpoTerms(
        loss=policy + kl_beta * kl,
        policy=policy.detach(),
        kl=kl.detach(),
        ratio_mean=(weight * ratio).sum().detach(),
        ratio_max=ratio.masked_fill(counted == 0, 0.0).max().detach(),
        clip_fraction=(weight * (clipped < unclipped)).sum().detach(),
        approximate_kl=(weight * -log_ratio).sum().detach(),
    )
