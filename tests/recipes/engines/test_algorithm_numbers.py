"""What each algorithm does to numbers: verl's own functions, as the composed configuration sets them, against loops.

The references below are written from the papers' formulas, one response and one token at a time, in plain Python.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from statistics import mean, stdev
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

# Two prompts with three responses each: the reward of a response stands at its last token.
UIDS = ["a", "a", "a", "b", "b", "b"]
SCORES = [1.0, 0.0, 0.1, 1.0, 1.0, 0.0]
LENGTHS = [2, 4, 3, 1, 4, 2]
WIDTH = max(LENGTHS)
LONGEST = 2048
"""Countdown's data.max_response_length, which no response here comes near."""

Grid = list[list[float]]
"""Responses by tokens; only the first LENGTHS[i] tokens of a row count."""


def padded(rows: Grid) -> torch.Tensor:
    return torch.tensor([row + [0.0] * (WIDTH - len(row)) for row in rows], dtype=torch.float64)


MASK = padded([[1.0] * length for length in LENGTHS])
generator = torch.Generator().manual_seed(3)
OLD = -2 * torch.rand((len(LENGTHS), WIDTH), generator=generator, dtype=torch.float64) * MASK
# New over old policy: inside every clip, between DAPO's upper clip and the others', beyond all, beyond the dual clip.
RATIOS = [[1.24, 0.7], [0.75, 1.5, 1.1, 0.9], [1.35, 1.0, 0.95], [3.5], [1.26, 0.6, 1.02, 1.15], [1.3, 0.85]]
NEW = OLD + padded([[math.log(ratio) for ratio in row] for row in RATIOS])
VALUES = torch.rand((len(LENGTHS), WIDTH), generator=generator, dtype=torch.float64) * MASK


def others(index: int) -> list[float]:
    """Rewards of the other responses to the same prompt."""
    return [score for i, score in enumerate(SCORES) if UIDS[i] == UIDS[index] and i != index]


def group(index: int) -> list[float]:
    return [*others(index), SCORES[index]]


def same_for_every_token(values: list[float]) -> Grid:
    return [[value] * length for value, length in zip(values, LENGTHS, strict=True)]


def whitened(rows: Grid) -> Grid:
    """Mean 0 and variance 1 over all tokens of the batch."""
    flat = [value for row in rows for value in row]
    centre, scale = mean(flat), stdev(flat)
    return [[(value - centre) / scale for value in row] for row in rows]


def generalised_advantages() -> Grid:
    """With gamma and lambda 1: what is still to come, minus what the critic expected."""
    rows = []
    for i, length in enumerate(LENGTHS):
        rows.append([SCORES[i] - float(VALUES[i, token]) for token in range(length)])
    return whitened(rows)


ADVANTAGES: dict[str, Callable[[], Grid]] = {
    "grpo": lambda: same_for_every_token(
        [(SCORES[i] - mean(group(i))) / (stdev(group(i)) + 1e-6) for i in range(len(SCORES))]
    ),
    "dr_grpo": lambda: same_for_every_token([SCORES[i] - mean(group(i)) for i in range(len(SCORES))]),
    "rloo": lambda: same_for_every_token([SCORES[i] - mean(others(i)) for i in range(len(SCORES))]),
    "reinforce_plus_plus": lambda: whitened(same_for_every_token(SCORES)),
    "reinforce_plus_plus_baseline": lambda: whitened(
        same_for_every_token([SCORES[i] - mean(group(i)) for i in range(len(SCORES))])
    ),
    "ppo": generalised_advantages,
}


def verls_advantages(algorithm: Any) -> torch.Tensor:
    from verl import DataProto
    from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories

    rewards = torch.zeros_like(MASK)
    for i, length in enumerate(LENGTHS):
        rewards[i, length - 1] = SCORES[i]
    data = DataProto.from_dict(
        tensors={"token_level_rewards": rewards, "response_mask": MASK, "values": VALUES.clone()},
        non_tensors={"uid": np.array(UIDS, dtype=object)},
    )
    done = compute_advantage_for_multi_trajectories(
        data,
        batch_keys=[f"{uid}_{i}_0" for i, uid in enumerate(UIDS)],
        adv_estimator=algorithm.adv_estimator,
        gamma=algorithm.gamma,
        lam=algorithm.lam,
        norm_adv_by_std_in_grpo=algorithm.norm_adv_by_std_in_grpo,
        config=algorithm,
    )
    return done.batch["advantages"] * MASK


@pytest.mark.parametrize("name", sorted(ADVANTAGES))
def test_advantages(composed, name):
    found = verls_advantages(composed(name).algorithm)
    torch.testing.assert_close(found, padded(ADVANTAGES[name]()), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["dapo", "gspo", "cispo"])
def test_the_others_keep_grpos_advantages(composed, name):
    found = verls_advantages(composed(name).algorithm)
    torch.testing.assert_close(found, padded(ADVANTAGES["grpo"]()), rtol=1e-5, atol=1e-6)


ADVANTAGE = padded(same_for_every_token([1.0, -1.0, 0.5, -4.0, 2.0, -0.5]))


def clipped(ratio: float, advantage: float, low: float, high: float) -> float:
    """PPO's pessimistic objective; a negative advantage is bounded by the dual clip, 3."""
    worst = min(ratio * advantage, min(max(ratio, 1 - low), 1 + high) * advantage)
    return max(worst, 3.0 * advantage) if advantage < 0 else worst


def token_losses(objective: Callable[[float, float], float]) -> Grid:
    return [
        [-objective(math.exp(float(NEW[i, t] - OLD[i, t])), float(ADVANTAGE[i, t])) for t in range(length)]
        for i, length in enumerate(LENGTHS)
    ]


def over_tokens(rows: Grid) -> float:
    return sum(map(sum, rows)) / sum(LENGTHS)


def over_responses(rows: Grid) -> float:
    return mean(sum(row) / len(row) for row in rows)


def over_a_constant(rows: Grid) -> float:
    return mean(sum(row) for row in rows) / LONGEST


def sequence_ratio(index: int) -> float:
    length = LENGTHS[index]
    return math.exp(sum(float(NEW[index, t] - OLD[index, t]) for t in range(length)) / length)


def gspo() -> float:
    """One clipped term for a response, and their mean."""
    return -mean(clipped_once(sequence_ratio(i), float(ADVANTAGE[i, 0])) for i in range(len(LENGTHS)))


def clipped_once(ratio: float, advantage: float) -> float:
    return min(ratio * advantage, min(max(ratio, 1 - 3e-4), 1 + 4e-4) * advantage)


def cispo() -> float:
    rows = [
        [
            -min(math.exp(float(NEW[i, t] - OLD[i, t])), 5.0) * float(ADVANTAGE[i, t]) * float(NEW[i, t])
            for t in range(length)
        ]
        for i, length in enumerate(LENGTHS)
    ]
    return over_tokens(rows)


LOSSES: dict[str, Callable[[], float]] = {
    "grpo": lambda: over_responses(token_losses(lambda r, a: clipped(r, a, 0.2, 0.2))),
    "dr_grpo": lambda: over_a_constant(token_losses(lambda r, a: clipped(r, a, 0.2, 0.2))),
    "dapo": lambda: over_tokens(token_losses(lambda r, a: clipped(r, a, 0.2, 0.28))),
    "gspo": gspo,
    "cispo": cispo,
    "rloo": lambda: over_tokens(token_losses(lambda r, a: clipped(r, a, 0.2, 0.2))),
    "ppo": lambda: over_tokens(token_losses(lambda r, a: clipped(r, a, 0.2, 0.2))),
}


def verls_loss(config: Any, new: torch.Tensor, width: int = WIDTH) -> torch.Tensor:
    """The policy loss of verl's actor, with the batch's facts that its worker fills in."""
    from verl.trainer.ppo.core_algos import get_policy_loss_fn
    from verl.utils.config import omega_conf_to_dataclass

    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    actor.global_batch_info.update(
        dp_size=1,
        batch_num_tokens=sum(LENGTHS),
        global_batch_size=len(LENGTHS),
        loss_scale_factor=actor.loss_scale_factor,
    )
    old, advantages, mask = (torch.nn.functional.pad(x, (0, width - WIDTH)) for x in (OLD, ADVANTAGE, MASK))
    loss, _ = get_policy_loss_fn(actor.policy_loss.loss_mode)(
        old_log_prob=old,
        log_prob=torch.nn.functional.pad(new, (0, width - WIDTH)),
        advantages=advantages,
        response_mask=mask,
        loss_agg_mode=actor.loss_agg_mode,
        config=actor,
    )
    return loss


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_losses(composed, name):
    found = float(verls_loss(composed(name), NEW))
    assert found == pytest.approx(LOSSES[name](), rel=1e-6)


def test_the_batch_tells_the_losses_apart():
    """RLOO and PPO differ in their advantages, not in their loss."""
    assert len({round(reference(), 6) for reference in LOSSES.values()}) == len(LOSSES) - 1


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_a_loss_is_the_same_however_far_the_batch_is_padded(composed, name):
    """Dr. GRPO's constant would be the width of the batch if the recipe did not state it."""
    assert float(verls_loss(composed(name), NEW, WIDTH + 7)) == pytest.approx(float(verls_loss(composed(name), NEW)))


def test_gspos_gradient_is_that_of_the_sequence_ratio(composed):
    """verl's loss is the token form (section 4.3 of the paper); with one advantage a response both agree."""
    new = NEW.clone().requires_grad_()
    verls_loss(composed("gspo"), new).backward()
    other = NEW.clone().requires_grad_()
    terms = []
    for i, length in enumerate(LENGTHS):
        ratio = torch.exp((other[i, :length] - OLD[i, :length]).sum() / length)
        terms.append(torch.minimum(ratio * ADVANTAGE[i, 0], ratio.clamp(1 - 3e-4, 1 + 4e-4) * ADVANTAGE[i, 0]))
    (-sum(terms) / len(terms)).backward()
    torch.testing.assert_close(new.grad, other.grad)


def test_cispo_clips_the_weight_and_keeps_the_gradient(composed):
    """With an upper clip of 0.1: tokens beyond it, which PPO would drop, still learn with weight 1.1."""
    new = NEW.clone().requires_grad_()
    verls_loss(composed("cispo", "worker.actor.clip_ratio_high=0.1"), new).backward()
    weight = torch.exp(NEW - OLD).clamp(max=1.1)
    torch.testing.assert_close(new.grad, -weight * ADVANTAGE / sum(LENGTHS) * MASK)
    assert ((torch.exp(NEW - OLD) > 1.1) & (ADVANTAGE > 0) & (new.grad != 0)).any()


def test_dapo_lets_an_unlikely_token_gain_more(composed):
    """A ratio of 1.25 with a positive advantage: clipped at 0.2, not at 0.28."""
    new = (OLD + math.log(1.25) * MASK).requires_grad_()
    gains = {}
    for name in ("rloo", "dapo"):
        new.grad = None
        verls_loss(composed(name), new).backward()
        gains[name] = float(new.grad[0, 0])
    assert gains["rloo"] == 0
    assert gains["dapo"] < 0


@pytest.mark.parametrize(
    ("length", "penalty"),
    [(1, 0.0), (1639, 0.0), (1640, -1 / 409), (1844, -205 / 409), (2048, -1.0)],
)
def test_dapos_penalty_grows_over_the_last_fifth_of_the_length(composed, length, penalty):
    """2,048 tokens: the buffer has 409, so it begins behind token 1,639."""
    from verl import DataProto
    from verl.experimental.reward_loop.reward_manager.dapo import DAPORewardManager

    tokenizer = SimpleNamespace(decode=lambda ids, skip_special_tokens: f"{len(ids)} tokens")
    seen = []

    def score(data_source, solution_str, ground_truth, extra_info):
        seen.append((data_source, solution_str, ground_truth))
        return {"score": 1.0, "accuracy": 1.0}

    attention = torch.cat([torch.ones(1, 3), torch.ones(1, length), torch.zeros(1, 2048 - length)], dim=1)
    item = DataProto.from_dict(
        tensors={"responses": torch.zeros(1, 2048, dtype=torch.long), "attention_mask": attention.long()},
        non_tensors={
            "data_source": np.array(["toy"], dtype=object),
            "reward_model": np.array([{"ground_truth": "7"}], dtype=object),
        },
    )

    async def run() -> dict[str, Any]:
        return await DAPORewardManager(composed("dapo"), tokenizer, score).run_single(item)

    result = asyncio.run(run())
    assert seen == [("toy", f"{length} tokens", "7")]
    assert float(result["reward_score"]) == pytest.approx(1.0 + penalty)
    assert float(result["reward_extra_info"]["overlong_reward"]) == pytest.approx(penalty)
    assert result["reward_extra_info"]["accuracy"] == 1.0, "what the filter looks at knows no penalty"


def test_the_critics_loss_is_clipped_around_its_old_values(composed):
    from verl.trainer.ppo.core_algos import compute_value_loss

    critic = composed("ppo").critic
    now = VALUES + 0.9 * torch.sign(torch.sin(torch.arange(WIDTH) + 1.0)) * MASK
    returns = VALUES + 0.3 * MASK
    found, _ = compute_value_loss(
        vpreds=now,
        returns=returns,
        values=VALUES,
        response_mask=MASK,
        cliprange_value=critic.cliprange_value,
        loss_agg_mode=critic.loss_agg_mode,
    )
    rows = []
    for i, length in enumerate(LENGTHS):
        row = []
        for t in range(length):
            new, old, target = float(now[i, t]), float(VALUES[i, t]), float(returns[i, t])
            near = min(max(new, old - 0.5), old + 0.5)
            row.append(0.5 * max((new - target) ** 2, (near - target) ** 2))
        rows.append(row)
    assert float(found) == pytest.approx(over_tokens(rows))
