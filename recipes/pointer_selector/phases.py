"""One batch of each phase: from log-probabilities to a loss and what it says about itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from recipes.pointer_selector import advantages, losses
from recipes.pointer_selector.batches import Batch
from recipes.pointer_selector.config import GrpoConfig
from recipes.pointer_selector.policy import PointerPolicy


@dataclass(frozen=True)
class Tables:
    """Numbers of logged candidates that stay the same during an epoch.

    Attributes:
        rewards: [M].
        old: [M, S], log-probabilities when the epoch began; None in the warm-up.
        reference: [M, S], log-probabilities of the warm-up policy; None in the warm-up.
    """

    rewards: Tensor
    old: Tensor | None = None
    reference: Tensor | None = None


Loss = tuple[Tensor, dict[str, Tensor | float]]
Step = Callable[[PointerPolicy, Batch, Tables], Loss]


def rce_step(tau: float) -> Step:
    """The warm-up's loss at temperature `tau`."""

    def step(policy: PointerPolicy, batch: Batch, tables: Tables) -> Loss:
        rewards, mask, steps = _groups(batch, tables)
        log_probs, entropies = policy.of_batch(batch)
        loss = losses.rce_loss(batch.picks_by_group(log_probs), steps, rewards, mask, tau)
        return loss, {
            "actor/rce_loss": loss.detach(),
            "actor/rce_tau": tau,
            "actor/entropy": entropies.sum() / batch.steps.sum(),
            "critic/rewards/mean": rewards[mask].mean(),
        }

    return step


def grpo_step(config: GrpoConfig, beta: float, keep: int) -> Step:
    """GRPO's loss with KL weight `beta`, on the `keep` best candidates of each group (0: all)."""

    def step(policy: PointerPolicy, batch: Batch, tables: Tables) -> Loss:
        assert tables.old is not None
        assert tables.reference is not None
        rewards, mask, steps = _groups(batch, tables)
        mask = advantages.keep_best(rewards, mask, keep)
        advantage = advantages.group_advantages(
            rewards, mask, config.advantage, floor=config.advantage_floor, clip=config.advantage_clip
        )
        log_probs, entropies = policy.of_batch(batch)
        old, reference = (_looked_up(table, batch, steps) for table in (tables.old, tables.reference))
        terms = losses.grpo_loss(
            batch.picks_by_group(log_probs),
            old,
            reference,
            advantage.values,
            steps,
            mask,
            clip=config.clip,
            kl_beta=beta,
            level=config.level,
            kl_over=config.kl.over,
        )
        values = advantage.values[mask]
        return terms.loss, {
            "actor/pg_loss": terms.policy,
            "actor/kl_loss": terms.kl,
            "actor/kl_coef": beta,
            "actor/ppo_kl": terms.approximate_kl,
            "actor/pg_clipfrac": terms.clip_fraction,
            "actor/ratio_mean": terms.ratio_mean,
            "actor/ratio_max": terms.ratio_max,
            "actor/entropy": entropies.sum() / batch.steps.sum(),
            "critic/rewards/mean": rewards[mask].mean(),
            "critic/advantages/mean": values.mean(),
            "critic/advantages/std": values.std(unbiased=False),
            "critic/advantages/max": values.max(),
            "critic/advantages/min": values.min(),
            "critic/silent_groups": advantage.silent.to(values.dtype).mean(),
        }

    return step


def _groups(batch: Batch, tables: Tables) -> tuple[Tensor, Tensor, Tensor]:
    """Rewards [G, N], candidates [G, N] and picks [G, N, S] of a batch, group by group."""
    rewards = tables.rewards[batch.rows.cpu()].to(batch.query)
    return batch.by_group(rewards), batch.by_group(batch.candidates), batch.picks_by_group(batch.steps)


def _looked_up(table: Tensor, batch: Batch, steps: Tensor) -> Tensor:
    values = table[batch.rows.cpu()][..., : steps.shape[-1]].to(batch.query.device)
    return batch.by_group(values).masked_fill(~steps, 0.0)


def update(
    policy: PointerPolicy, optimizer: torch.optim.Optimizer, loss: Tensor, lr: float, max_grad_norm: float
) -> Tensor:
    """One optimiser step; returns the gradient's norm before clipping."""
    for group in optimizer.param_groups:
        group["lr"] = lr
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    trained = [p for group in optimizer.param_groups for p in group["params"]]
    norm = torch.nn.utils.clip_grad_norm_(trained, max_grad_norm)
    optimizer.step()
    return norm


def to_floats(metrics: dict[str, Tensor | float]) -> dict[str, float]:
    """All metrics as numbers, with one transfer from the device."""
    names = [name for name, value in metrics.items() if isinstance(value, Tensor)]
    stacked = torch.stack([metrics[name].detach().float() for name in names]).cpu().numpy() if names else np.zeros(0)
    floats = dict(zip(names, stacked.tolist(), strict=True))
    return {name: floats.get(name, value) for name, value in metrics.items()}  # type: ignore[misc]
