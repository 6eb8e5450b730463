"""What each algorithm does to numbers: verl's own functions, as the composed configuration sets them, against loops.

The references are written from the papers' formulas, one response and one token at a time.
"""

from collections.abc import Callable
from statistics import mean, stdev
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import DictConfig

from recipes.config import resolve

# Two prompts with three responses each: the reward of a response stands at its last token.
UIDS = ["a", "a", "a", "b", "b", "b"]
SCORES = [1.0, 0.0, 0.1, 1.0, 1.0, 0.0]
LENGTHS = [2, 4, 3, 1, 4, 2]
WIDTH = max(LENGTHS)
LONGEST = 2048
"""Countdown's data.max_response_length, which no response here comes near."""


def padded(rows: list[list[float]]) -> torch.Tensor:
    return torch.tensor([row + [0.0] * (WIDTH - len(row)) for row in rows], dtype=torch.float64)


MASK = padded([[1.0] * length for length in LENGTHS])
generator = torch.Generator().manual_seed(3)
OLD = -2 * torch.rand((len(LENGTHS), WIDTH), generator=generator, dtype=torch.float64) * MASK
# New over old policy: inside every clip, between DAPO's upper clip and the others', beyond all, beyond the dual clip.
RATIOS = [[1.24, 0.7], [0.75, 1.5, 1.1, 0.9], [1.35, 1.0, 0.95], [3.5], [1.26, 0.6, 1.02, 1.15], [1.3, 0.85]]
NEW = OLD + padded(RATIOS).where(MASK > 0, 1.0).log()
VALUES = torch.rand((len(LENGTHS), WIDTH), generator=generator, dtype=torch.float64) * MASK
ADVANTAGES = torch.tensor([1.0, -1.0, 0.5, -4.0, 2.0, -0.5], dtype=torch.float64)[:, None] * MASK


@pytest.fixture
def configured(composed) -> Callable[..., DictConfig]:
    """Countdown's recipe under an algorithm; with the pass for old log-probabilities, without which losses are ours."""
    keep = "worker.actor.recompute_old_log_probs=true"
    return lambda name, *arguments, **options: composed(keep, *arguments, algorithm=name, **options)


def reference_advantages(name: str) -> torch.Tensor:
    rows = []
    for i, (score, length) in enumerate(zip(SCORES, LENGTHS, strict=True)):
        others = [other for j, other in enumerate(SCORES) if UIDS[j] == UIDS[i] and j != i]
        group = [*others, score]
        standardised = (score - mean(group)) / (stdev(group) + 1e-6)
        of_response = {
            "dr_grpo": score - mean(group),
            "rloo": score - mean(others),
            "reinforce_plus_plus": score,
            "reinforce_plus_plus_baseline": score - mean(group),
        }.get(name, standardised)
        rows.append([of_response] * length)
    if name in ("reinforce_plus_plus", "reinforce_plus_plus_baseline"):  # whitened over the batch's tokens
        flat = [value for row in rows for value in row]
        rows = [[(value - mean(flat)) / stdev(flat) for value in row] for row in rows]
    return padded(rows)


@pytest.mark.parametrize("name", resolve.algorithms())
def test_advantages(configured, name):
    from verl import DataProto
    from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories

    algorithm = configured(name).algorithm
    rewards = torch.zeros_like(MASK)
    for i, length in enumerate(LENGTHS):
        rewards[i, length - 1] = SCORES[i]
    data = DataProto.from_dict(
        tensors={"token_level_rewards": rewards, "response_mask": MASK, "values": VALUES.clone()},
        non_tensors={"uid": np.array(UIDS, dtype=object)},
    )
    names = ("adv_estimator", "gamma", "lam", "norm_adv_by_std_in_grpo")
    keys = [f"{uid}_{i}_0" for i, uid in enumerate(UIDS)]
    given = {name: algorithm[name] for name in names}
    done = compute_advantage_for_multi_trajectories(data, batch_keys=keys, config=algorithm, **given)
    torch.testing.assert_close(done.batch["advantages"] * MASK, reference_advantages(name), rtol=1e-5, atol=1e-6)


CLIPS = {"dapo": (0.2, 0.28), "gspo": (3e-4, 4e-4)}
CISPO = "worker.actor.clip_ratio_high=0.1"
"""An upper bound that some ratios exceed."""


def reference_loss(name: str, new: torch.Tensor) -> torch.Tensor:
    """PPO's pessimistic objective with a dual clip of 3; GSPO has one ratio a response; CISPO bounds a weight."""
    low, high = CLIPS.get(name, (0.2, 0.2))
    rows = []
    for i, length in enumerate(LENGTHS):
        logs = [new[i, t] - OLD[i, t] for t in range(length)]
        ratios = [value.exp() for value in ([sum(logs) / length] * length if name == "gspo" else logs)]
        advantage = ADVANTAGES[i, 0]
        row = [torch.minimum(r * advantage, r.clamp(1 - low, 1 + high) * advantage) for r in ratios]
        if name == "cispo":
            row = [r.clamp(max=1.1).detach() * advantage * new[i, t] for t, r in enumerate(ratios)]
        elif name != "gspo" and advantage < 0:
            row = [torch.maximum(term, 3 * advantage) for term in row]
        rows.append(row)
    if name in ("grpo", "gspo"):
        return -sum(sum(row) / len(row) for row in rows) / len(rows)
    if name == "dr_grpo":
        return -sum(map(sum, rows)) / LONGEST / len(rows)
    return -sum(map(sum, rows)) / sum(LENGTHS)


def verls_loss(config: Any, new: torch.Tensor, width: int) -> torch.Tensor:
    """The policy loss of verl's actor, with the batch's facts that its worker fills in."""
    from verl.trainer.ppo.core_algos import get_policy_loss_fn
    from verl.utils.config import omega_conf_to_dataclass

    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    sizes = {"dp_size": 1, "batch_num_tokens": sum(LENGTHS), "global_batch_size": len(LENGTHS)}
    actor.global_batch_info.update(sizes, loss_scale_factor=actor.loss_scale_factor)
    batch = {"old_log_prob": OLD, "log_prob": new, "advantages": ADVANTAGES, "response_mask": MASK}
    wide = {name: torch.nn.functional.pad(each, (0, width - WIDTH)) for name, each in batch.items()}
    loss_function = get_policy_loss_fn(actor.policy_loss.loss_mode)
    return loss_function(**wide, loss_agg_mode=actor.loss_agg_mode, config=actor)[0]


@pytest.mark.parametrize("name", resolve.algorithms())
def test_losses_and_gradients(configured, name):
    """However far the batch is padded: Dr. GRPO's constant would be its width if the recipe did not state it."""
    expected, new = NEW.clone().requires_grad_(), NEW.clone().requires_grad_()
    loss = reference_loss(name, expected)
    loss.backward()
    config = configured(name, *([CISPO] if name == "cispo" else []))
    for width in (WIDTH, WIDTH + 7):
        new.grad = None
        found = verls_loss(config, new, width)
        found.backward()
        torch.testing.assert_close(found, loss)
        torch.testing.assert_close(new.grad, expected.grad)


KL_IN_REWARD = {"reinforce_plus_plus", "rloo"}
KL_IN_LOSS = {"grpo", "reinforce_plus_plus_baseline"}


@pytest.mark.parametrize("name", resolve.algorithms())
def test_verl_accepts_an_algorithm_and_kl_acts_where_its_paper_has_it(configured, name):
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    config = configured(name)
    in_loss = config.actor_rollout_ref.actor.use_kl_loss
    assert (config.algorithm.use_kl_in_reward, in_loss) == (name in KL_IN_REWARD, name in KL_IN_LOSS)
    assert need_reference_policy(config) == (name in KL_IN_REWARD or name in KL_IN_LOSS)
    validate_config(config, need_reference_policy(config), need_critic(config))
