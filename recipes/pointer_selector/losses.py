"""Rewards, advantages within a group, and the losses of RCE and GRPO.

Shapes: M candidates in the data; B groups (one query at one number of picks), N candidates a group and S picks, both
padded. `mask` [B, N] is true where a candidate takes part, `steps` [B, N, S] where it has a pick.
"""

import numpy as np
import torch
from torch import Tensor

from recipes.config.schema import leaves
from recipes.errors import RecipeError
from recipes.pointer_selector.config import OF_BETA, GrpoConfig, PointerRecipe, RewardConfig
from recipes.pointer_selector.dataset import PointerData

ADVANTAGE_FLOOR, ADVANTAGE_CLIP = 0.1, 5.0
"""Least standard deviation that a z-score divides by, and the largest magnitude of an advantage."""
QUALITY, CORRECT = "beam_score", "vqa_correct"
TERMS: dict[str, tuple[str, float]] = {
    "combined": (QUALITY, 1.0),
    "hard_soft": ("vqa_acc_score", 1.0),
    "separated": ("vqa_acc_score", 2.0),  # right answers stay above wrong ones while alpha < 2 beta
    "correctness": ("", 1.0),
    "probability": ("vqa_gt_prob", 0.0),
    "quality": (QUALITY, 0.0),
}
"""Mode -> soft score and weight in the reward alpha * soft + beta * weight * vqa_correct. beam_score is rescaled within
its group, to 0 to 1, so that it has the scale of correctness."""
SAME = 1e-6
"""Rewards of a group count as equal if they differ by no more; float32 rounds rewards of order 1 by about 1e-7."""
LARGEST_LOG_RATIO = 20.0
"""Log-ratios are clamped to this magnitude: exp(20) is 5e8; larger ratios carry no information and can overflow."""


def rewards(data: PointerData, config: RewardConfig) -> np.ndarray:
    """One reward a candidate, [M] in float32; `TERMS` has the formula.

    Raises RecipeError, which names the query, where a candidate lacks a score that the mode needs.
    """
    read = {mode: [*filter(None, (soft, CORRECT * bool(weight)))] for mode, (soft, weight) in TERMS.items()}
    missing = {name: np.flatnonzero(np.isnan(values)) for name, values in data.scores.items()}
    for name in read[config.mode]:
        if len(missing[name]):
            possible = [mode for mode, names in read.items() if not any(len(missing[each]) for each in names)]
            query = data.query_ids[data.candidate_query[missing[name][0]]]
            what = f"{len(missing[name])} candidates have no {name}, the first of them in query {query!r}"
            fix = f"set REWARD_MODE to {' or '.join(possible) or 'another'}, or log that number"
            raise RecipeError(what, where=f"reward.mode={config.mode}", fix=fix)
    scores = {name: values.astype(np.float64) for name, values in data.scores.items()}
    soft, weight = TERMS[config.mode]
    total = np.zeros(len(data.lengths))
    if soft:
        total += config.alpha * (data.within_groups(scores[soft]) if soft == QUALITY else scores[soft])
    if weight:
        total += config.beta * weight * scores[CORRECT]
    return total.astype(np.float32)


def unread(recipe: PointerRecipe) -> list[str]:
    """A note for each of the user's settings that the chosen mode or phases do not read."""
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
    """The groups [n] whose rewards are all equal, single candidates among them: advantages are 0 there."""
    starts = data.group_starts[:-1]
    return np.flatnonzero(~(np.maximum.reduceat(values, starts) - np.minimum.reduceat(values, starts) > SAME))


def group_advantages(rewards: Tensor, mask: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    """Advantages [B, N] of rewards [B, N] within each group, and for each group [B] whether it has zero variance.

    "zscore" divides by the group's deviation, "rank" spreads the ranks evenly over [-1, 1], ties sharing their mean
    rank. Exactly 0 at padding, and where a group has a single candidate or equal rewards.
    """
    count = mask.sum(-1, keepdim=True).clamp(min=1)
    rewards = rewards.masked_fill(~mask, 0.0)
    low = rewards.masked_fill(~mask, float("inf")).amin(-1)
    high = rewards.masked_fill(~mask, float("-inf")).amax(-1)
    zero_variance = ~(high - low > SAME)
    if kind == "rank":
        difference = rewards[..., :, None] - rewards[..., None, :]
        wins = torch.where(difference > 0, 1.0, torch.where(difference == 0, 0.5, 0.0)).to(rewards.dtype)
        both = mask[..., :, None] & mask[..., None, :]
        values = 2 * ((wins * both).sum(-1) - 0.5) / (count - 1).clamp(min=1) - 1
    else:
        mean = rewards.sum(-1, keepdim=True) / count
        values = (rewards - mean).masked_fill(~mask, 0.0)
        deviation = (values.square().sum(-1, keepdim=True) / count).sqrt()
        values = values / deviation.clamp(min=ADVANTAGE_FLOOR)
    values = values.clamp(-ADVANTAGE_CLIP, ADVANTAGE_CLIP).masked_fill(~mask | zero_variance[:, None], 0.0)
    return values, zero_variance


def keep_top_candidates(rewards: Tensor, mask: Tensor, count: int) -> Tensor:
    """The curriculum's mask [B, N]: the `count` candidates of each group with the highest reward [B, N], 0 for all.

    Of equal ones the first is kept.
    """
    if not count:
        return mask
    order = rewards.masked_fill(~mask, float("-inf")).argsort(dim=-1, descending=True, stable=True)
    return torch.zeros_like(mask).scatter(-1, order[:, :count], True) & mask


def rce_loss(log_probs: Tensor, steps: Tensor, rewards: Tensor, mask: Tensor, tau: float) -> Tensor:
    """Reward-conditioned cross-entropy: -sum_i softmax(reward / tau)_i log pi(i), mean over groups and picks.

    log_probs [B, N, S] are 0 at padding; all candidates of a group have equally many picks. A high tau treats all
    candidates alike.
    """
    weights = (rewards / tau).masked_fill(~mask, float("-inf")).softmax(-1)
    return -(weights * log_probs.sum(-1) / steps.sum(-1).clamp(min=1)).sum(-1).mean()


def grpo_loss(
    log_probs: Tensor,
    old: Tensor,
    reference: Tensor,
    advantages: Tensor,
    steps: Tensor,
    mask: Tensor,
    config: GrpoConfig,
    beta: float,
) -> tuple[Tensor, dict[str, Tensor]]:
    """GRPO's loss: PPO's clipped surrogate with group-relative advantages, plus `beta` k3 against the warm-up.

    Source: Shao et al., DeepSeekMath (2024), equation 3, which is level "step"; its equation 4 is k3, Schulman's
    estimate (2020) of KL(policy || reference): r - 1 - log r with r = reference / policy. k3 is unbiased for samples of
    the policy; over logged candidates it is a penalty, not an estimate.

    Args:
        log_probs, old, reference: [B, N, S], log-probabilities under the policy, the policy at the start of the epoch,
            and the warm-up policy; 0 at padding.
        advantages: [B, N].
        config: `level` takes one ratio a candidate, or one a pick, averaged over the candidate's picks first; `kl.over`
            averages k3 over all candidates alike, or by the policy's own probability, renormalised within its group and
            without gradient. Alike, a candidate that the policy rightly gave up costs exp(log-ratio).

    Returns:
        The loss, and the metrics of the update as scalars without gradient.
    """
    of_policy, clip = config.kl.over == "policy", config.clip
    own = log_probs.detach().sum(-1).masked_fill(~mask, float("-inf")).softmax(-1) if of_policy else None
    if config.level == "sequence":
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
    log_r = (reference - log_probs).clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO)
    kl = (kl_weight * (log_r.exp() - 1 - log_r)).sum()

    metrics = {
        "actor/pg_loss": policy,
        "actor/kl_loss": kl,
        "actor/ppo_kl": (weight * -log_ratio).sum(),
        "actor/pg_clipfrac": (weight * (clipped < unclipped)).sum(),
        "actor/ratio_mean": (weight * ratio).sum(),
        "actor/ratio_max": ratio.masked_fill(counted == 0, 0.0).max(),
    }
    return policy + beta * kl, {name: value.detach() for name, value in metrics.items()}
