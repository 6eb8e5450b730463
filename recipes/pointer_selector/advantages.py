"""Advantages relative to a group: how much better a candidate is than the other candidates of the same query."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

SAME = 1e-6
"""Rewards of a group that differ by no more than this are equal; float32 rewards of order 1 carry about 1e-7."""


@dataclass(frozen=True)
class Advantages:
    """Advantages [B, N], 0 at padding; and per group [B] whether it is silent, all its rewards being equal."""

    values: Tensor
    silent: Tensor


def group_advantages(rewards: Tensor, mask: Tensor, kind: str, *, floor: float, clip: float) -> Advantages:
    """Advantages within each group; exactly 0 where a group has a single candidate or equal rewards.

    Args:
        rewards: [B, N].
        mask: [B, N], true where there is a candidate.
        kind: "zscore" divides by the group's deviation, "mean" subtracts the mean only (Dr. GRPO), "rank" spreads the
            ranks evenly over [-1, 1], ties sharing their mean rank.
        floor: the least deviation that "zscore" divides by.
        clip: the largest magnitude.
    """
    count = mask.sum(-1, keepdim=True).clamp(min=1)
    rewards = rewards.masked_fill(~mask, 0.0)
    mean = rewards.sum(-1, keepdim=True) / count
    low = rewards.masked_fill(~mask, float("inf")).amin(-1)
    high = rewards.masked_fill(~mask, float("-inf")).amax(-1)
    silent = ~(high - low > SAME)
    if kind == "rank":
        values = _ranks(rewards, mask, count)
    else:
        values = (rewards - mean).masked_fill(~mask, 0.0)
        if kind == "zscore":
            deviation = (values.square().sum(-1, keepdim=True) / count).sqrt()
            values = values / deviation.clamp(min=floor)
        elif kind != "mean":
            raise ValueError(f"advantages are zscore, rank or mean, not {kind!r}")
    values = values.clamp(-clip, clip).masked_fill(~mask | silent[:, None], 0.0)
    return Advantages(values, silent)


def _ranks(rewards: Tensor, mask: Tensor, count: Tensor) -> Tensor:
    difference = rewards[..., :, None] - rewards[..., None, :]
    both = mask[..., :, None] & mask[..., None, :]
    wins = torch.where(difference > 0, 1.0, torch.where(difference == 0, 0.5, 0.0)).to(rewards.dtype)
    rank = (wins * both).sum(-1) - 0.5
    return 2 * rank / (count - 1).clamp(min=1) - 1


def keep_best(rewards: Tensor, mask: Tensor, count: int) -> Tensor:
    """The curriculum's mask: the `count` candidates with the highest reward in each group; earlier ones win ties.

    rewards [B, N], mask [B, N] -> [B, N].
    """
    if count <= 0 or count >= rewards.shape[-1]:
        return mask
    order = rewards.masked_fill(~mask, float("-inf")).argsort(dim=-1, descending=True, stable=True)
    kept = torch.zeros_like(mask).scatter(-1, order[:, :count], True)
    return kept & mask
