"""verl's agent loops, with the pictures of a prompt processed once for all of its responses.

verl decodes a prompt's pictures and runs the image processor for each response
(verl/experimental/agent_loop/single_turn_agent_loop.py:44 (`self.process_multi_modal_info(messages)`)), and runs it
twice more when the response is there (verl/experimental/agent_loop/agent_loop.py:981 and
verl/trainer/ppo/v1/agent_loop_tq.py:188 (`self._compute_multi_modal_inputs(output, input_ids)`)). With five responses
for each of 128 screenshots, eight workers were busy with it for 15 s of a step, while vLLM waited.

`AgentLoops` is the manager where prompts have pictures; its workers import this module, whose loop takes the place of
verl's in verl's registry of names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import Any

import ray
import torch
from verl.experimental.agent_loop.agent_loop import register
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop
from verl.trainer.ppo.v1 import agent_loop_tq

from recipes.engines.verl import pictures, tool_loop, trainer

assert tool_loop  # registered by its import, in each worker
PICTURES, TOKENS = "pictures", "tokens"

_shared: ContextVar[dict[str, asyncio.Task[Any]]] = ContextVar("what the responses of a prompt share")


async def _once(name: str, compute: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Return what `compute` returns for the first response of the prompt."""
    tasks = _shared.get()
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


_Worker: Any = agent_loop_tq.AgentLoopWorkerTQ.__ray_metadata__.modified_class  # verl decorates the class for Ray


class Worker(_Worker):
    """verl's worker of agent loops; a response gets the features that were made with its prompt's tokens."""

    async def _run_prompt(self, *args: Any, **kwargs: Any) -> None:
        _shared.set({})  # each prompt is a task of its own, whose context its responses inherit
        await super()._run_prompt(*args, **kwargs)

    def _compute_multi_modal_inputs(self, output: Any, input_ids: torch.Tensor) -> dict[str, torch.Tensor]:
        tasks, shown = _shared.get(), output.multi_modal_data or {}
        if list(shown) != ["images"] or shown["images"] is not tasks[PICTURES].result()["images"]:
            return dict(super()._compute_multi_modal_inputs(output, input_ids))  # a tool may have added some
        _, _, packed = tasks[TOKENS].result()
        lengths = packed[pictures.GRID]
        seen = {name: value for name, value in packed.items() if name not in ("input_ids", "attention_mask")}
        return seen | {"images_seqlens": torch.repeat_interleave(lengths[:, 1] * lengths[:, 2], lengths[:, 0])}


class AgentLoops(trainer.AgentLoops):
    """The manager of agent loops, with `Worker` as its worker."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.agent_loop_workers_class = ray.remote(Worker)
