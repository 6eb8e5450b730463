"""Rewards, advantages within a group, and the losses of RCE and GRPO.

Shapes: M candidates in the data; B groups (one query at one number of picks), N candidates a group and S picks, both
padded.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from recipes.config.schema import leaves
from recipes.errors import RecipeError
from recipes.pointer_selector.config import OF_BETA, PointerRecipe, RewardConfig
from recipes.pointer_selector.dataset import PointerData

QUALITY = "quality"
"""The score of beam search, rescaled to 0 to 1 within its group, so that it has the scale of correctness."""
ADVANTAGE_FLOOR, ADVANTAGE_CLIP = 0.1, 5.0
"""Least standard deviation that a z-score divides by, and the largest magnitude of an advantage."""
TERMS: dict[str, tuple[str | None, float]] = {
    "combined": (QUALITY, 1.0),
    "hard_soft": ("vqa_acc_score", 1.0),
    "separated": ("vqa_acc_score", 2.0),  # right answers stay above wrong ones while alpha < 2 beta
    "correctness": (None, 1.0),
    "probability": ("vqa_gt_prob", 0.0),
    "quality": (QUALITY, 0.0),
}
"""Mode -> soft score and weight in the reward alpha * soft + beta * weight * vqa_correct."""
SAME = 1e-6
"""Rewards of a group count as equal if they differ by no more; float32 rounds rewards of order 1 by about 1e-7."""
LARGEST_LOG_RATIO = 20.0
"""Log-ratios are clamped to this magnitude: exp(20) is 5e8; larger ratios carry no information and can overflow."""


def rewards(data: PointerData, config: RewardConfig) -> np.ndarray:
    """Return one reward a candidate, [M] in float32; `TERMS` has the formula.

    Raises:
        RecipeError: a candidate lacks a score that the mode needs; the error names the query.
    """

    def logged(name: str) -> np.ndarray:
        values = data.scores[name].astype(np.float64)
        missing = np.flatnonzero(np.isnan(values))
        if len(missing):
            query = data.query_ids[data.candidate_query[missing[0]]]
            raise RecipeError(
                f"{len(missing)} candidates have no {name}, the first of them in query {query!r}",
                where=f"reward.mode={config.mode}",
                fix=f"set REWARD_MODE to {' or '.join(possible(data)) or 'another'}, or log that number",
            )
        return values

    soft, weight = TERMS[config.mode]
    total = np.zeros(len(data.lengths))
    if soft:
        total += config.alpha * (data.within_groups(logged("beam_score")) if soft == QUALITY else logged(soft))
    if weight:
        total += config.beta * weight * logged("vqa_correct")
    return total.astype(np.float32)


def possible(data: PointerData) -> list[str]:
    """Return the modes whose numbers every candidate has."""
    there = {name for name, values in data.scores.items() if not np.isnan(values).any()}
    needed = {
        mode: {"beam_score" if soft == QUALITY else soft, "vqa_correct" if weight else None} - {None}
        for mode, (soft, weight) in TERMS.items()
    }
    return [mode for mode, names in needed.items() if names <= there]


def unread(recipe: PointerRecipe) -> list[str]:
    """Return a note for each of the user's settings that the chosen mode or phases do not read."""
    notes, mode = [], recipe.reward.mode
    terms: dict[str, object] = dict(zip(("reward.alpha", "reward.beta"), TERMS[mode], strict=True))
    if recipe.source_of("reward.mode") is OF_BETA:
        notes.append(f"reward.mode is {mode}: {recipe.source_of('reward.beta')} weighs correctness; REWARD_MODE wins")
    for path in leaves(PointerRecipe):
        epochs, reason = f"{path.partition('.')[0]}.epochs", ""
        if not terms.get(path, True):
            reason = f"reward.mode={mode} has no such term"
        elif epochs in ("rce.epochs", "grpo.epochs") and path != epochs and not recipe.value(epochs):
            reason = f"{epochs} is 0"
        if reason and recipe.source_of(path).by_user:
            notes.append(f"{recipe.source_of(path)} ({path}) is not read: {reason}")
    return notes


def equal_groups(values: np.ndarray, data: PointerData) -> np.ndarray:
    """Return the groups [n] whose rewards are all equal, single candidates among them: advantages are 0 there."""
    starts = data.group_starts[:-1]
    return np.flatnonzero(~(np.maximum.reduceat(values, starts) - np.minimum.reduceat(values, starts) > SAME))


def group_advantages(rewards: Tensor, mask: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    """Return advantages within each group; exactly 0 where a group has a single candidate or equal rewards.

    Args:
        rewards: [B, N].
        mask: [B, N], true where there is a candidate.
        kind: "zscore" divides by the group's deviation, "rank" spreads the ranks evenly over [-1, 1], ties sharing
            their mean rank.

    Returns:
        The advantages [B, N], 0 at padding, and for each group [B] whether it has zero variance.
    """
    count = mask.sum(-1, keepdim=True).clamp(min=1)
    rewards = rewards.masked_fill(~mask, 0.0)
    low = rewards.masked_fill(~mask, float("inf")).amin(-1)
    high = rewards.masked_fill(~mask, float("-inf")).amax(-1)
    zero_variance = ~(high - low > SAME)
    if kind == "rank":
        values = _ranks(rewards, mask, count)
    else:
        mean = rewards.sum(-1, keepdim=True) / count
        values = (rewards - mean).masked_fill(~mask, 0.0)
        deviation = (values.square().sum(-1, keepdim=True) / count).sqrt()
        values = values / deviation.clamp(min=ADVANTAGE_FLOOR)
    values = values.clamp(-ADVANTAGE_CLIP, ADVANTAGE_CLIP).masked_fill(~mask | zero_variance[:, None], 0.0)
    return values, zero_variance


def _ranks(rewards: Tensor, mask: Tensor, count: Tensor) -> Tensor:
    difference = rewards[..., :, None] - rewards[..., None, :]
    both = mask[..., :, None] & mask[..., None, :]
    wins = torch.where(difference > 0, 1.0, torch.where(difference == 0, 0.5, 0.0)).to(rewards.dtype)
    rank = (wins * both).sum(-1) - 0.5
    return 2 * rank / (count - 1).clamp(min=1) - 1


def keep_top_candidates(rewards: Tensor, mask: Tensor, count: int) -> Tensor:
    """Return the curriculum's mask: the `count` candidates of each group with the highest reward; ties go to the first.

    rewards [B, N], mask [B, N] -> [B, N]; a `count` of 0 keeps all.
    """
    if not count:
        return mask
    order = rewards.masked_fill(~mask, float("-inf")).argsort(dim=-1, descending=True, stable=True)
    kept = torch.zeros_like(mask).scatter(-1, order[:, :count], True)
    return kept & mask


def rce_loss(log_probs: Tensor, steps: Tensor, rewards: Tensor, mask: Tensor, tau: float) -> Tensor:
    """Return reward-conditioned cross-entropy: -sum_i softmax(reward / tau)_i log pi(i), mean over groups and picks.

    Args:
        log_probs: [B, N, S], 0 at padding.
        steps: [B, N, S], true where a candidate has a pick; all candidates of a group have equally many.
        rewards: [B, N].
        mask: [B, N], true where there is a candidate.
        tau: temperature of the weights; a high one treats all candidates alike.
    """
    weights = (rewards / tau).masked_fill(~mask, float("-inf")).softmax(-1)
    return -(weights * log_probs.sum(-1) / steps.sum(-1).clamp(min=1)).sum(-1).mean()


def k3(log_probs: Tensor, reference: Tensor) -> Tensor:
    """Return Schulman's k3 estimate of KL(policy || reference), r - 1 - log r with r = reference / policy; it is >= 0.

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
    level: str,
    kl_over: str,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return GRPO's loss: PPO's clipped surrogate with group-relative advantages, plus beta k3 against the warm-up.

    Args:
        log_probs: [B, N, S], the policy's log-probabilities, 0 at padding.
        old: [B, N, S], those of the policy at the start of the epoch.
        reference: [B, N, S], those of the warm-up policy.
        advantages: [B, N].
        steps: [B, N, S], true where a candidate has a pick.
        mask: [B, N], true where a candidate takes part.
        clip: PPO's epsilon; the ratio is clipped to [1 - clip, 1 + clip].
        kl_beta: weight of k3.
        level: "sequence" takes one ratio a candidate; "step" one a pick, averaged over the candidate's picks first.
        kl_over: "logged" averages k3 over all candidates alike; "policy" weights each by the policy's own probability,
            renormalised within its group and without gradient, which comes nearer to the KL of the policy: under
            "logged", a candidate that the policy rightly gave up costs exp(log-ratio) though it is never picked.

    Returns:
        The loss, and the metrics of the update as scalars without gradient.

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

    metrics = {
        "actor/pg_loss": policy,
        "actor/kl_loss": kl,
        "actor/ppo_kl": (weight * -log_ratio).sum(),
        "actor/pg_clipfrac": (weight * (clipped < unclipped)).sum(),
        "actor/ratio_mean": (weight * ratio).sum(),
        "actor/ratio_max": ratio.masked_fill(counted == 0, 0.0).max(),
    }
    return policy + kl_beta * kl, {name: value.detach() for name, value in metrics.items()}
