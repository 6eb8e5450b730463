"""What changes while training goes on: temperature of RCE, learning rate, weight of the KL term, curriculum."""

from __future__ import annotations

import math

from recipes.pointer_selector.config import CurriculumConfig, KlConfig


def tau(step: int, total: int, start: float, end: float) -> float:
    """RCE's temperature at a step, linear from `start` at step 0 to `end` at the last one."""
    if total <= 1:
        return end
    return start + (end - start) * min(1.0, max(0.0, step / (total - 1)))


def learning_rate(step: int, total: int, peak: float, warmup_share: float) -> float:
    """Linear warm-up over the first share of the steps, then a half cosine down to 0."""
    warmup = max(1, round(warmup_share * total))
    if step < warmup:
        return peak * (step + 1) / warmup
    progress = min(1.0, (step - warmup) / max(1, total - warmup))
    return peak * 0.5 * (1 + math.cos(math.pi * progress))


def next_beta(beta: float, kl: float, config: KlConfig) -> float:
    """The adaptive weight of the KL term: times `factor` above the target band, divided by it below, within bounds.

    Source: the adaptive KL controller of Schulman et al., PPO (2017), section 4, with a band for a target.
    """
    if not config.adaptive:
        return beta
    if kl > config.target_high:
        beta *= config.factor
    elif kl < config.target_low:
        beta /= config.factor
    return min(config.beta_max, max(config.beta_min, beta))


def candidates_kept(epoch: int, epochs: int, config: CurriculumConfig) -> int:
    """How many of a group's best candidates take part in this epoch (counted from 0); 0 means all of them."""
    return config.early_candidates if epoch < config.early_share * epochs else 0
