"""verl's agent loops: a prompt's pictures processed once for all of its responses, and turns with calls of tools.

verl decodes a prompt's pictures and runs the image processor for each response
(verl/experimental/agent_loop/single_turn_agent_loop.py:44 (`self.process_multi_modal_info(messages)`)), and runs it
twice more when the response is there (verl/experimental/agent_loop/agent_loop.py:981 and
verl/trainer/ppo/v1/agent_loop_tq.py:188 (`self._compute_multi_modal_inputs(output, input_ids)`)). With five responses
for each of 128 screenshots, eight workers were busy with it for 15 s of a step, while vLLM waited.

A worker makes each of its loops once, `prompt_queue.py` keeps a prompt's rows together, and `OnlyServer` asks once for
the one server there is: Python for each response is what limits a small model.
"""

import asyncio
import functools
import math
import os
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import ray
import torch
from tensordict import TensorDict
from verl.experimental.agent_loop import agent_loop
from verl.experimental.agent_loop.agent_loop import (
    AgentLoopBase,
    AgentLoopOutput,
    DictConfigWrap,
    ToolListWrap,
    register,
)
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop
from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop
from verl.experimental.reward_loop.reward_loop import RewardLoopWorker
from verl.trainer.main_ppo import TaskRunnerV1
from verl.trainer.ppo.v1 import AgentLoopManagerTQ, agent_loop_tq
from verl.utils.profiler import simple_timer
from verl.utils.rollout_trace import rollout_trace_attr
from verl.workers.rollout.llm_server import LLMServerClient

from recipes.dumps import CONVERSATION
from recipes.engines.verl import pictures, trainer, upstream
from recipes.engines.verl.conversation import Conversation, Rules
from recipes.engines.verl.prompt_queue import SHARED
from recipes.engines.verl.tools import VARIABLE, Tools, given

PICTURES, TOKENS = "pictures", "tokens"


async def _once(name: str, compute: Callable[[], Awaitable[Any]]) -> Any:
    """The result of `compute` for the first response of the prompt."""
    tasks = SHARED.get()
    if name not in tasks:
        tasks[name] = asyncio.ensure_future(compute())
    return await tasks[name]


@register("single_turn_agent")
class SharedPicturesLoop(SingleTurnAgentLoop):
    """verl's loop of one turn; a prompt's pictures are decoded once, and its tokens and features made once."""

    async def process_multi_modal_info(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        return dict(await _once(PICTURES, lambda: super(SharedPicturesLoop, self).process_multi_modal_info(messages)))

    async def ct_build_initial_tokens(self, *args: Any, mm_inputs_out: Any = None, **given: Any) -> list[int]:
        tokens, features, _ = await _once(TOKENS, lambda: self._tokens(*args, **given))
        if mm_inputs_out is not None:
            mm_inputs_out.update(features)
        return list(tokens)

    async def _tokens(self, *args: Any, **given: Any) -> tuple[list[int], dict[str, Any], dict[str, Any]]:
        """The prompt's tokens, its features as the image processor made them, and what the engine gets of these."""
        features: dict[str, Any] = {}
        tokens = await super().ct_build_initial_tokens(*args, mm_inputs_out=features, **given)
        if pictures.PATCHES not in features:
            return tokens, features, {}
        packed = await self.loop.run_in_executor(None, pictures.pack, features, self.processor)
        return tokens, features, packed


class ToolLoop(ToolAgentLoop):
    """verl's loop with tools that cannot stop a worker, in `Conversation`'s turns."""

    _rules: Rules | None = None

    def __init__(self, *args: Any, tools: Any = None, hf_model_type: str | None = None, **kwargs: Any) -> None:
        super().__init__(*args, tools=tools, hf_model_type=hf_model_type, **kwargs)
        if ToolLoop._rules is None:  # a worker has one model; of a user's subclass verl makes one for each response
            ToolLoop._rules = Rules(
                self.tokenizer,
                Tools(tools.tools, given()),
                self.rollout_config.prompt_length,
                self.rollout_config.response_length,
                model_type=hf_model_type,
                template_arguments=self.apply_chat_template_kwargs,
            )

    async def run(self, sampling_params: dict[str, Any], priority: int = 0, **kwargs: Any) -> AgentLoopOutput:
        """Generate and call until the response has ended."""
        rules, metrics = self._rules, {"num_preempted": 0}
        assert rules is not None
        extra: dict[str, Any] = {}
        if rules.parser.stop_token_ids:
            sampling_params = {**sampling_params, "stop_token_ids": rules.parser.stop_token_ids}
        conversation = Conversation(rules, list(kwargs["raw_prompt"]))
        request = self._make_request_id(priority, self.rollout_config.full_determinism)
        while not conversation.ended:
            with simple_timer("generate_sequences", metrics):
                output = await self.server_manager.generate(
                    request_id=request, prompt_ids=conversation.tokens, sampling_params=sampling_params
                )
            metrics["num_preempted"] += output.num_preempted or 0
            extra = {**output.extra_fields, **extra}
            if newest := output.extra_fields.get("max_global_steps"):  # step of the weights that wrote the last turn
                extra["max_global_steps"] = newest
            calls = await conversation.hear(output.token_ids, output.log_probs or None)
            if calls:
                with simple_timer("tool_calls", metrics):
                    waiting = [rules.tools.call(call.name, call.arguments) for call in calls]
                    answers = await asyncio.gather(*map(asyncio.wrap_future, waiting))
                conversation.answer(answers)
        facts = {**conversation.facts, "last_text": conversation.last_text}
        return AgentLoopOutput(
            prompt_ids=conversation.prompt,
            response_ids=conversation.response,
            response_mask=conversation.mask,
            response_logprobs=conversation.log_probs,
            num_turns=len(conversation.turns) + 1,
            metrics=metrics,
            extra_fields={**extra, "turn_scores": [], "tool_rewards": [], CONVERSATION: facts},
        )


OURS = {f"{kind.__module__}.{kind.__qualname__}": kind for kind in (SharedPicturesLoop, ToolLoop)}
"""Loops as verl's registry has them, by their paths -> their classes."""

if VARIABLE in os.environ:  # without tools of the recipe's, a row's column `agent_name` means verl's loop
    register("tool_agent")(ToolLoop)


class LocalReward:
    """A reward worker in this process, which verl calls as it calls a Ray actor: `compute_score.remote`."""

    def __init__(self, config: Any) -> None:
        self._config = config
        self._worker: RewardLoopWorker | None = None
        self.compute_score = SimpleNamespace(remote=self._compute_score)

    async def _compute_score(self, data: Any) -> Any:
        if self._worker is None:
            self._worker = RewardLoopWorker(self._config)  # made here: the worker keeps the running event loop
        return await self._worker.compute_score(data)


_Worker: Any = agent_loop_tq.AgentLoopWorkerTQ.__ray_metadata__.modified_class  # verl decorates the class for Ray


class Worker(_Worker):
    """verl's worker of agent loops; a response gets the features that were made with its prompt's tokens.

    With `reward.num_workers: 0`, as on CPUs, it computes rewards itself: one process less that imports torch and verl.
    """

    reward_loop_worker_handles: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        upstream.apply("agent loops")
        super().__init__(*args, **kwargs)
        if self.reward_loop_worker_handles == []:
            self.reward_loop_worker_handles = [LocalReward(self.config)]
        self._loop = functools.cache(self._make_loop)

    def _make_loop(self, name: str) -> AgentLoopBase | None:
        """One of this module's loops, which serve any number of responses; None for others."""
        registered = dict(agent_loop._agent_loop_registry.get(name, {}))
        kind = OURS.get(registered.pop("_target_", ""))
        if kind is None or registered:  # arguments of its own
            return None
        return kind(
            trainer_config=DictConfigWrap(self.config),
            server_manager=self.llm_client,
            tokenizer=self.tokenizer,
            processor=self.processor,
            hf_model_type=self.hf_model_type,
            dataset_cls=self.dataset_cls,
            data_config=DictConfigWrap(self.config.data),
            tools=ToolListWrap(self.tools),
        )

    async def _run_agent_loop(
        self, sampling_params: dict[str, Any], trajectory: dict[str, Any], *, agent_name: str, trace: bool, **row: Any
    ) -> None:
        """Run a loop for one response; verl makes a loop for each, by Hydra: a third of this worker's time."""
        loop = self._loop(agent_name)
        if loop is None:
            await super()._run_agent_loop(sampling_params, trajectory, agent_name=agent_name, trace=trace, **row)
            return
        with rollout_trace_attr(**trajectory, name="agent_loop", trace=trace):
            output = await loop.run(sampling_params, **row)
            await self._agent_loop_postprocess(output, trajectory["validate"], **row)

    async def _run_prompt(self, *args: Any, **kwargs: Any) -> None:
        SHARED.set({})  # each prompt is a task of its own, whose context its responses inherit
        await super()._run_prompt(*args, **kwargs)

    def _compute_multi_modal_inputs(self, output: Any, input_ids: torch.Tensor) -> dict[str, torch.Tensor]:
        tasks, shown = SHARED.get(), output.multi_modal_data or {}
        if (
            list(shown) != ["images"]
            or TOKENS not in tasks
            or shown["images"] is not tasks[PICTURES].result()["images"]
        ):
            return dict(super()._compute_multi_modal_inputs(output, input_ids))  # another loop's, or a tool added some
        _, _, packed = tasks[TOKENS].result()
        lengths = packed[pictures.GRID]
        seen = {name: value for name, value in packed.items() if name not in ("input_ids", "attention_mask")}
        return seen | {"images_seqlens": torch.repeat_interleave(lengths[:, 1] * lengths[:, 2], lengths[:, 0])}


class OnlyServer(LLMServerClient):
    """verl's client where there is one server: which one is asked once, and nobody is told that a request has ended."""

    _asked: asyncio.Task[tuple[str, Any]] | None = None

    async def _acquire_server(self, request_id: str, **extra: Any) -> tuple[str, Any]:
        if self._asked is None:
            self._asked = asyncio.create_task(super()._acquire_server(request_id, **extra))
        return await self._asked

    def _release_server(self, server_id: str, request_id: str | None = None) -> None:
        pass


def _has_one_server(config: Any) -> bool:
    """Return whether one server takes all GPUs of verl's synchronous trainer, without a router of the user's."""
    rollout, trained = config.actor_rollout_ref.rollout, config.trainer
    if rollout.get("router_config_path"):
        return False
    of_server = math.prod(rollout[f"{kind}_parallel_size"] for kind in ("tensor_model", "data", "pipeline_model"))
    return trained.v1.trainer_mode == "sync" and trained.nnodes * trained.n_gpus_per_node == of_server


class AgentLoops(AgentLoopManagerTQ):
    """verl's manager of agent loops, with `Worker`; the trainer learns which row each prompt is."""

    def __init__(self, config: Any, llm_client: Any, *args: Any, **kwargs: Any) -> None:
        if type(llm_client) is LLMServerClient and _has_one_server(config):
            llm_client = OnlyServer(config, llm_client._load_balancer)
        super().__init__(config, llm_client, *args, **kwargs)
        self.agent_loop_workers_class = ray.remote(Worker)

    def generate_sequences(self, prompts: TensorDict) -> None:
        trainer.remember_rows(prompts)
        super().generate_sequences(prompts)


class TaskRunner(TaskRunnerV1.__ray_metadata__.modified_class):  # verl decorates the class for Ray
    """verl's task runner, which makes `AgentLoops`, with the changes of the driver made before it runs."""

    def run(self, config: Any) -> Any:
        upstream.apply("driver")
        return super().run(config)
