"""verl's workers of agent loops: one loop for all responses, a prompt's rows put together, one server."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transfer_queue
from omegaconf import OmegaConf
from verl.experimental.agent_loop import agent_loop
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput
from verl.trainer.ppo.v1 import agent_loop_tq
from verl.workers.rollout.llm_server import LLMServerClient

from recipes.engines.verl import agent_loops, upstream

RESPONSES = {"a": 3, "b": 2}
"""Prompt -> its responses; the second of `b` fails."""


class Loop:
    """A loop whose response is of the prompt's and the session's length, and comes the later the shorter it is."""

    def __init__(self) -> None:
        self.asked = 0

    async def run(self, _: dict[str, Any], *, uid: str, **__: Any) -> AgentLoopOutput:
        number, self.asked = self.asked, self.asked + 1
        await asyncio.sleep(0.02 / (1 + number))
        if (uid, number) == ("b", 4):
            raise ValueError("no answer")
        tokens = list(range(2 + number))
        return AgentLoopOutput(
            prompt_ids=[7, 8], response_ids=tokens, response_mask=[1] * len(tokens), metrics=AgentLoopMetrics()
        )


def worker(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A worker with `Loop` for all responses, without the processes around it."""
    made = object.__new__(agent_loops.Worker)
    rollout = {"n": None, "val_kwargs": {"n": 1}}
    made.config = OmegaConf.create({"actor_rollout_ref": {"rollout": rollout}})
    made.reward_loop_worker_handles, made.distillation_enabled = None, False
    made.processor, made.mm_processor_kwargs = None, {}
    loop = Loop()
    made._loop = lambda name: loop
    return made


def put_into_the_queue(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], Any, Any]]:
    """Run both prompts; what reaches the queue: keys, columns, tags or a status."""
    puts: list[tuple[list[str], Any, Any]] = []

    async def put_rows(*, keys: list[str], fields: Any, tags: Any, partition_id: str) -> None:
        puts.append((keys, fields, tags))

    async def put_status(*, key: str, partition_id: str, tag: Any) -> None:
        puts.append(([key], None, tag["status"]))

    monkeypatch.setattr(transfer_queue, "async_kv_batch_put", put_rows)
    monkeypatch.setattr(transfer_queue, "async_kv_put", put_status)
    made = worker(monkeypatch)

    async def both() -> None:
        trajectory = {"step": 1, "sample_index": 0, "rollout_n": 0, "validate": False}
        prompts = [
            {"uid": uid, "__rollout_n__": n, "agent_name": "single_turn_agent", "global_steps": 1, "raw_prompt": uid}
            for uid, n in RESPONSES.items()
        ]
        await asyncio.gather(*(asyncio.create_task(made._run_prompt(each, {}, trajectory)) for each in prompts))

    asyncio.run(both())
    return puts


def rows(puts: list[tuple[list[str], Any, Any]]) -> dict[str, dict[str, Any]]:
    """Key -> the row as the queue's storage keeps it, and its tag."""
    found: dict[str, dict[str, Any]] = {}
    for keys, columns, tags in puts:
        if columns is None:
            continue
        for number, (key, tag) in enumerate(zip(keys, tags, strict=True)):
            values = {name: column[number] for name, column in columns.items()}
            plain = {name: v.tolist() if isinstance(v, torch.Tensor) else v for name, v in values.items()}
            found[key] = {**plain, "tag": tag}
    return found


def test_the_rows_of_a_prompt_are_verls_and_stand_in_the_queue_together_before_its_status(monkeypatch):
    before = put_into_the_queue(monkeypatch)
    monkeypatch.setattr(agent_loop_tq, "tq", agent_loop_tq.tq)
    monkeypatch.setattr(agent_loop_tq, "list_of_dict_to_tensordict", agent_loop_tq.list_of_dict_to_tensordict)
    upstream.rows_of_a_prompt_together.__wrapped__()
    after = put_into_the_queue(monkeypatch)
    assert rows(after) == rows(before)
    assert len(rows(after)) == sum(RESPONSES.values()) - 1, "without the one that failed"
    ended = {"a": "finished", "b": "failure"}
    for prompt, status in ended.items():
        order = [(len(keys), tags) for keys, columns, tags in after if keys[0][0] == prompt]
        assert [each if isinstance(each, str) else "rows" for _, each in order] == ["running", "rows", status]
        assert order[1][0] == RESPONSES[prompt] - (status == "failure")


@pytest.mark.parametrize("ours", [True, False])
def test_a_loop_of_ours_is_made_once_and_verls_make_another_loop_for_each_response(monkeypatch, ours):
    monkeypatch.setattr(agent_loop, "_agent_loop_registry", dict(agent_loop._agent_loop_registry))
    monkeypatch.setattr(agent_loops, "_agent_loop_registry", agent_loop._agent_loop_registry)
    if not ours:
        agent_loop._agent_loop_registry["single_turn_agent"] = {"_target_": "somebody.Loop"}
    monkeypatch.setitem(agent_loops.OURS, next(iter(agent_loops.OURS)), lambda **given: SimpleNamespace(**given))
    made = worker(monkeypatch)
    made.config.data, made.llm_client, made.tokenizer, made.hf_model_type = {}, "client", "tokenizer", "llama"
    made.dataset_cls = made.tools = None
    assert (made._make_loop("single_turn_agent") is not None) == ours
    assert made._make_loop("unknown") is None


@pytest.mark.parametrize(("gpus", "tensor", "mode", "asked"), [(2, 2, "sync", 1), (2, 1, "sync", 3), (2, 2, "x", 3)])
def test_which_server_takes_a_request_is_asked_once_where_there_is_one(monkeypatch, gpus, tensor, mode, asked):
    calls: list[str] = []

    class Method:
        def __init__(self, name: str) -> None:
            self.name = name

        async def remote(self, **_: Any) -> Any:
            calls.append(self.name)
            return ("server", None) if self.name == "acquire_server" else []

    balancer = SimpleNamespace(**{name: Method(name) for name in ("require_acquire_fields", "require_release_fields")})
    balancer.acquire_server = Method("acquire_server")
    balancer.release_server = SimpleNamespace(remote=lambda **_: calls.append("release_server"))
    rollout = {"tensor_model_parallel_size": tensor, "data_parallel_size": 1, "pipeline_model_parallel_size": 1}
    trained = {"nnodes": 1, "n_gpus_per_node": gpus, "v1": {"trainer_mode": mode}}
    config = OmegaConf.create({"actor_rollout_ref": {"rollout": rollout}, "trainer": trained})
    monkeypatch.setattr(
        agent_loops.AgentLoopManagerTQ, "__init__", lambda self, config, client: setattr(self, "c", client)
    )
    client = agent_loops.AgentLoops(config, LLMServerClient(config, balancer)).c

    async def three() -> None:
        for number in range(3):
            server, _ = await client._acquire_server(str(number))
            client._release_server(server, request_id=str(number))

    asyncio.run(three())
    assert (calls.count("acquire_server"), calls.count("release_server")) == (asked, 0 if asked == 1 else 3)
