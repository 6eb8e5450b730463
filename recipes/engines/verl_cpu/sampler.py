"""verl's replay buffer, polled often.

verl polls every 2.0 s (verl/trainer/ppo/v1/replay_buffer.py:409), a floor under every generation and validation of a
small model. `trainer.v1.sampler.custom_sampler` is its hook for another buffer.
"""

from __future__ import annotations

from typing import Any

from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

POLL_SECONDS = 0.05


class QuickReplayBuffer(ReplayBuffer):
    """`ReplayBuffer` with a poll of 0.05 s.

    verl hands a custom buffer no group filter (verl/trainer/ppo/v1/trainer_base.py:170), so `settings.py` refers to the
    same keys in `sampler_kwargs`, and they take the effect that they have on verl's own buffer.
    """

    def __init__(self, *, sampler_kwargs: Any, **kwargs: Any) -> None:
        super().__init__(
            sampler_kwargs=sampler_kwargs, poll_interval=POLL_SECONDS, **_filtering(sampler_kwargs or {}), **kwargs
        )


def _filtering(given: Any) -> dict[str, Any]:
    """The arguments that verl gives its own synchronous buffer (`PPOTrainer._build_replay_buffer`)."""
    groups = given.get("filter_groups") or {}
    refill = bool(given.get("sync_refill_failed_groups", False))
    train_batch_size = given.get("train_batch_size")
    filtered = bool(groups.get("enable", False))
    if not filtered:
        gen_batch_size = 1 if refill else given.get("gen_batch_size") or train_batch_size
        return {
            "train_batch_size": train_batch_size,
            "gen_batch_size": gen_batch_size,
            "sync_refill_failed_groups": refill,
        }
    return {
        "filter_groups_metric": str(groups["metric"]),
        "train_batch_size": train_batch_size,
        "gen_batch_size": 1,
        "max_inflight_gen_batches": groups.get("max_inflight_gen_batches", 1),
        "sync_refill_failed_groups": refill,
    }
