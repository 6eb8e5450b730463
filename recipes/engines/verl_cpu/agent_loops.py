"""verl's agent loops with fewer messages between processes, for steps that are short.

verl's worker of agent loops builds an object from Hydra's configuration for each response, and sends each to the load
balancer twice, to vLLM, to a process of rewards, and to the transfer queue's controller and storage. On two cores that
is half of a tiny model's generating. Here one object serves all responses, a single server is asked for once, rewards
are computed in this process where the recipe has no process for them (`worker.reward.num_workers: 0`), and responses
that end while others are being stored are stored together.

verl's hook `actor_rollout_ref.rollout.agent.agent_loop_manager_class` loads `CpuAgentLoops`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import ray
import transfer_queue
from verl.experimental.agent_loop import agent_loop
from verl.experimental.agent_loop.agent_loop import DictConfigWrap
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop
from verl.experimental.reward_loop.reward_loop import RewardLoopWorker
from verl.trainer.ppo.v1 import agent_loop_tq
from verl.utils.tensordict_utils import list_of_dict_to_tensordict
from verl.workers.rollout.llm_server import LLMServerClient

from recipes.engines.row_ids import AgentLoops

Row = dict[str, Any]
SINGLE_TURN = {"_target_": f"{SingleTurnAgentLoop.__module__}.{SingleTurnAgentLoop.__qualname__}"}
"""verl's entry for the loop of single turns; a file of the user's may name another."""
_Worker: Any = agent_loop_tq.AgentLoopWorkerTQ.__ray_metadata__.modified_class


class OneServerClient(LLMServerClient):
    """verl's client of vLLM's servers, which asks the load balancer until it knows that there is only one."""

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
    """A worker of rewards in this process, behind the call that verl makes of a Ray actor: `compute_score.remote`."""

    def __init__(self, config: Any) -> None:
        self._config = config
        self._worker: RewardLoopWorker | None = None

    @property
    def compute_score(self) -> Any:
        return SimpleNamespace(remote=self._compute_score)

    async def _compute_score(self, data: Any) -> Any:
        if self._worker is None:
            self._worker = RewardLoopWorker(self._config)  # here, since it keeps the loop that runs
        return await self._worker.compute_score(data)


@dataclass
class Message:
    """Responses that are stored together, and the storing once it has begun."""

    keys: list[str] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    tags: list[Row] = field(default_factory=list)
    storing: asyncio.Task[Any] | None = None


class GroupedPuts:
    """`transfer_queue` for verl's worker, with one message for all the responses that wait to be stored.

    While one message is under way, responses that end wait; the next message takes them all. Each call returns once its
    own response is stored, so that verl, which then reports a prompt as finished, never does so too early.
    """

    def __init__(self) -> None:
        self._next: dict[tuple[Any, ...], Message] = {}
        self._under_way = asyncio.Lock()

    def __getattr__(self, name: str) -> Any:
        return getattr(transfer_queue, name)

    async def async_kv_batch_put(
        self, keys: list[str], partition_id: str, fields: list[Row], tags: list[Row], **_: Any
    ) -> None:
        """As `transfer_queue.async_kv_batch_put`, with a list of rows in the place of a `TensorDict`."""
        kind = (partition_id, *sorted(fields[0]))  # rows of one message have the same columns
        message = self._next.setdefault(kind, Message())
        message.keys += keys
        message.rows += fields
        message.tags += tags
        async with self._under_way:
            if message.storing is None:
                await asyncio.sleep(0)  # for others that end now
                del self._next[kind]
                stored = transfer_queue.async_kv_batch_put(
                    keys=message.keys,
                    partition_id=partition_id,
                    fields=list_of_dict_to_tensordict(message.rows),
                    tags=message.tags,
                )
                message.storing = asyncio.create_task(stored)
                await asyncio.wait([message.storing])
        await message.storing


class CpuAgentLoopWorker(_Worker):
    """verl's worker with these three, and one object for the agent loops of single turns."""

    llm_client: Any
    reward_loop_worker_handles: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if type(self.llm_client) is LLMServerClient:  # asynchronous trainers have another, and servers that come later
            self.llm_client = OneServerClient(self.llm_client.config, self.llm_client._load_balancer)
        if self.reward_loop_worker_handles == []:
            self.reward_loop_worker_handles = [LocalReward(self.config)]
        self._single_turns: SingleTurnAgentLoop | None = None
        group_puts()

    async def _run_agent_loop(
        self, sampling_params: Row, trajectory: Row, *, agent_name: str, trace: bool = True, **kwargs: Any
    ) -> None:
        """As verl's, which makes a loop from Hydra's configuration for each response, in 2 ms.

        One for single turns keeps nothing of a response.
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


def group_puts() -> None:
    """Have verl/trainer/ppo/v1/agent_loop_tq.py:222 (`await tq.async_kv_batch_put(`) store responses together.

    It hands one row over as a `TensorDict`; here the row stays a dictionary until it is known what goes with it.
    """
    agent_loop_tq.tq = GroupedPuts()
    agent_loop_tq.list_of_dict_to_tensordict = list


class CpuAgentLoops(AgentLoops):
    """The manager of agent loops with that worker."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.agent_loop_workers_class = ray.remote(CpuAgentLoopWorker)
