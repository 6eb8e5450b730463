"""The replay buffer, polled often.

verl polls every 2.0 s (verl/trainer/ppo/v1/replay_buffer.py:409), a floor under every generation and validation of a
small model. `trainer.v1.sampler.custom_sampler` is its hook for another buffer.
"""

from __future__ import annotations

from typing import Any

from recipes.engines.samplers import BoundedReplayBuffer

POLL_SECONDS = 0.05


class QuickReplayBuffer(BoundedReplayBuffer):
    """`BoundedReplayBuffer` with a poll of 0.05 s."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(poll_interval=POLL_SECONDS, **kwargs)
