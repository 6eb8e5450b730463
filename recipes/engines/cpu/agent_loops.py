"""verl's agent loops with fewer messages between processes, for short steps.

For each response verl's worker of agent loops builds an object from Hydra's configuration and sends messages: two to
the load balancer, others to vLLM and to a reward process. Without these a step of a tiny model on two busy cores takes
3.1 s instead of 3.5.

Here one object serves all responses. If there is one server, the load balancer is not asked for it again. If the recipe
has no reward processes (`reward.num_workers: 0`), rewards are computed in this process.

verl's hook `actor_rollout_ref.rollout.agent.agent_loop_manager_class` loads `CpuAgentLoops`.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import ray
from verl.experimental.agent_loop import agent_loop
from verl.experimental.agent_loop.agent_loop import DictConfigWrap
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop
from verl.experimental.reward_loop.reward_loop import RewardLoopWorker
from verl.trainer.ppo.v1 import agent_loop_tq
from verl.workers.rollout.llm_server import LLMServerClient

from recipes.engines.verl.trainer import AgentLoops

Row = dict[str, Any]
SINGLE_TURN = {"_target_": f"{SingleTurnAgentLoop.__module__}.{SingleTurnAgentLoop.__qualname__}"}
"""verl's registry entry for its single-turn loop. A user's file may register another by the same name."""
_Worker: Any = agent_loop_tq.AgentLoopWorkerTQ.__ray_metadata__.modified_class


class OneServerClient(LLMServerClient):
    """verl's client of vLLM's servers. It stops asking the load balancer once it has seen that there is one server."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._only: tuple[str, Any] | None = None
        self._asked: set[str | None] = set()

    async def _acquire_server(self, request_id: str, **extra: Any) -> tuple[str, Any]:
        if self._only is not None:
            return self._only
        self._asked.add(request_id)
        server = await super()._acquire_server(request_id, **extra)
        if len(await self._load_balancer.get_all_servers.remote()) == 1:
            self._only = server
        return server

    def _release_server(self, server_id: str, request_id: str | None = None) -> None:
        if request_id in self._asked:
            self._asked.discard(request_id)
            super()._release_server(server_id, request_id)


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
            self._worker = RewardLoopWorker(self._config)  # made here, since it keeps the event loop that is running
        return await self._worker.compute_score(data)


class CpuAgentLoopWorker(_Worker):
    """verl's worker with the two classes above, and one object for all single-turn loops."""

    llm_client: Any
    reward_loop_worker_handles: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if type(self.llm_client) is LLMServerClient:  # verl's asynchronous trainers have another
            self.llm_client = OneServerClient(self.llm_client.config, self.llm_client._load_balancer)
        if self.reward_loop_worker_handles == []:
            self.reward_loop_worker_handles = [LocalReward(self.config)]
        self._single_turns: SingleTurnAgentLoop | None = None

    async def _run_agent_loop(
        self, sampling_params: Row, trajectory: Row, *, agent_name: str, trace: bool = True, **kwargs: Any
    ) -> None:
        """Run the loop of one response as verl does, but with one object for all single-turn loops.

        verl makes an object for each response from Hydra's configuration, which takes 2 ms. One object is enough, since
        a single-turn loop keeps nothing of a response.
        """
        if trace or agent_loop._agent_loop_registry[agent_name] != SINGLE_TURN:
            return await super()._run_agent_loop(
                sampling_params, trajectory, agent_name=agent_name, trace=trace, **kwargs
            )
        if self._single_turns is None:
            self._single_turns = SingleTurnAgentLoop(
                trainer_config=DictConfigWrap(self.config),
                server_manager=self.llm_client,
                tokenizer=self.tokenizer,
                processor=self.processor,
                hf_model_type=self.hf_model_type,
                dataset_cls=self.dataset_cls,
                data_config=DictConfigWrap(self.config.data),
            )
        output = await self._single_turns.run(sampling_params, **kwargs)
        await self._agent_loop_postprocess(output, trajectory["validate"], **kwargs)
        return None


class CpuAgentLoops(AgentLoops):
    """The manager of agent loops, with `CpuAgentLoopWorker` as its worker."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.agent_loop_workers_class = ray.remote(CpuAgentLoopWorker)
