"""What the numbers of an epoch mean, in words: healthy, or what is wrong and what to try."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

KL_LOW, KL_HIGH = 0.01, 0.1


@dataclass(frozen=True)
class Finding:
    """A judgement on one number; `code` is stable, `text` is for people."""

    code: str
    text: str


def judge_epoch(data: Mapping[str, float], rising: bool = False) -> list[Finding]:
    """Findings on the means of one GRPO epoch; metrics that are absent are not judged.

    `rising`: the epoch validated best so far, so that a large KL or many clipped ratios are a price that pays.
    """
    found = []
    kl, beta = data.get("actor/kl_loss"), data.get("actor/kl_coef", 1.0)
    if kl is not None and kl < KL_LOW:
        found.append(
            Finding(
                "kl_low",
                f"KL {kl:.4f} is below {KL_LOW}: the policy hardly leaves the warm-up; lower KL_BETA or raise GRPO_LR",
            )
        )
    sampled = data.get("val-aux/pointer_selector/kl_on_policy")
    if beta > 0 and kl is not None and sampled is not None and kl > KL_HIGH and kl > 3 * max(sampled, KL_LOW):
        found.append(
            Finding(
                "kl_inflated",
                f"the penalty reads {kl:.3g}, but sampled sequences say the KL is {sampled:.2f}: candidates that the "
                "policy gave up inflate it; grpo.kl.over=policy weights them by how likely they still are",
            )
        )
    elif kl is not None and kl > KL_HIGH and not rising:
        found.append(
            Finding("kl_high", f"KL {kl:.3f} is above {KL_HIGH}: raise KL_BETA, lower GRPO_LR, or stop earlier")
        )
    if data.get("actor/pg_clipfrac", 0) > 0.3 and not rising:
        found.append(
            Finding(
                "clip_high",
                f"{data['actor/pg_clipfrac']:.0%} of the ratios are clipped, which teaches nothing: lower GRPO_LR",
            )
        )
    if data.get("actor/ratio_max", 1) > 10:
        found.append(
            Finding(
                "ratio_high", f"a ratio reached {data['actor/ratio_max']:.0f}: updates within an epoch are too large"
            )
        )
    if data.get("critic/silent_groups", 0) > 0.5:
        found.append(
            Finding(
                "silent",
                f"{data['critic/silent_groups']:.0%} of the groups have equal rewards: use a graded reward",
            )
        )
    deviation = data.get("critic/advantages/std")
    if deviation is not None and deviation < 0.05 and data.get("critic/silent_groups", 0) <= 0.5:
        found.append(
            Finding(
                "advantage_small",
                f"advantages have a deviation of {deviation:.3f}: rewards hardly differ within groups",
            )
        )
    return found


def judge_fit(train: list[float], validation: list[float]) -> list[Finding]:
    """Findings on a phase's curves, epoch by epoch and the state before it first: over-fitting, or no gain at all."""
    if len(validation) < 2:
        return []
    best = max(range(len(validation)), key=validation.__getitem__)
    found = []
    fell = validation[best] - validation[-1]
    rose = train[-1] - train[best] if len(train) == len(validation) else 0.0
    if best < len(validation) - 1 and fell > 0.005 and rose > 0:
        found.append(
            Finding(
                "over_fit",
                f"over-fitting since epoch {best}: validation fell by {fell:.1%} while training rose by {rose:.1%}; "
                "the checkpoint of the best epoch is kept",
            )
        )
    if best == 0:
        found.append(Finding("no_gain", "no epoch of this phase was better on validation than its start"))
    return found
