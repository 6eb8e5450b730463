"""verl's agent loops, which compute rewards themselves where the recipe has no reward processes.

With `reward.num_workers: 0` a machine without a GPU has one process less that imports torch and verl. verl loads
`CpuAgentLoops` through the key `actor_rollout_ref.rollout.agent.agent_loop_manager_class`.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import ray
from verl.experimental.reward_loop.reward_loop import RewardLoopWorker
from verl.trainer.ppo.v1 import agent_loop_tq

from recipes.engines.verl import upstream
from recipes.engines.verl.trainer import AgentLoops

_Worker: Any = agent_loop_tq.AgentLoopWorkerTQ.__ray_metadata__.modified_class
if upstream.are_on():
    from recipes.engines.verl.agent_loops import Worker as _Worker


class LocalReward:
    """A reward worker in this process, which verl calls as it calls a Ray actor: `compute_score.remote`."""

    def __init__(self, config: Any) -> None:
        self._config = config
        self._worker: RewardLoopWorker | None = None

    @property
    def compute_score(self) -> Any:
        return SimpleNamespace(remote=self._compute_score)

    async def _compute_score(self, data: Any) -> Any:
        if self._worker is None:
            self._worker = RewardLoopWorker(self._config)  # made here: the worker keeps the running event loop
        return await self._worker.compute_score(data)


class CpuAgentLoopWorker(_Worker):
    """verl's worker, with `LocalReward` where there is no reward process."""

    reward_loop_worker_handles: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.reward_loop_worker_handles == []:
            self.reward_loop_worker_handles = [LocalReward(self.config)]


class CpuAgentLoops(AgentLoops):
    """The manager of agent loops, with `CpuAgentLoopWorker` as its worker."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.agent_loop_workers_class = ray.remote(CpuAgentLoopWorker)
