"""verl's workers of agent loops: one loop for all responses, a prompt's rows put together, one server."""

import asyncio
import functools
import json
from dataclasses import asdict
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

from recipes.data.lengths import chat_tokenizer
from recipes.engines.verl import agent_loops, upstream
from recipes.engines.verl.tools import VARIABLE, ToolSettings, load_tools
from recipes.paths import ROOT

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
        given = {"prompt_ids": [7, 8], "response_ids": tokens, "response_mask": [1] * len(tokens)}
        if number == 1:  # one response has what the others lack
            given |= {"response_logprobs": [-0.5] * len(tokens)}
        return AgentLoopOutput(**given, metrics=AgentLoopMetrics())


def worker() -> Any:
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
    made = worker()

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
        kinds = 1 + (prompt == "a")
        assert [each if isinstance(each, str) else "rows" for _, each in order] == [
            "running",
            *["rows"] * kinds,
            status,
        ]
        assert sum(count for count, _ in order[1:-1]) == RESPONSES[prompt] - (status == "failure")


class Counted(Loop):
    """A loop as verl or the worker makes it; `made` counts them."""

    made = 0

    def __init__(self, **_: Any) -> None:
        super().__init__()
        type(self).made += 1


@pytest.mark.parametrize(("entry", "made"), [({}, 1), ({"name": "single_turn_agent"}, 3), ({"_target_": "theirs"}, 3)])
def test_a_loop_of_ours_is_made_once_and_verl_makes_another_for_each_response(monkeypatch, entry, made):
    path, theirs = next(iter(agent_loops.OURS)), f"{__name__}.Counted"
    entry = {"_target_": theirs if made == 3 else path} | {key: value for key, value in entry.items() if key == "name"}
    monkeypatch.setattr(agent_loop, "_agent_loop_registry", {"single_turn_agent": entry})
    monkeypatch.setitem(agent_loops.OURS, path, Counted)
    if "name" in entry:  # an entry of the user's file, with what else they write there
        monkeypatch.setitem(agent_loops.OURS, theirs, Counted)
    monkeypatch.setattr(Counted, "made", 0)
    done = worker()
    done.config.data, done.llm_client, done.tokenizer, done.hf_model_type = {}, "client", "tokenizer", "llama"
    done.dataset_cls = done.tools = None
    done._loop = functools.cache(done._make_loop)
    ended: list[str] = []

    async def end(output: AgentLoopOutput, validate: bool, **row: Any) -> None:
        ended.append(row["uid"])

    done._agent_loop_postprocess = end

    async def three() -> None:
        for uid in "xyz":
            trajectory = {"step": 1, "sample_index": 0, "rollout_n": 0, "validate": False}
            await done._run_agent_loop({}, trajectory, agent_name="single_turn_agent", trace=False, uid=uid)

    asyncio.run(three())
    assert (Counted.made, ended) == (made, ["x", "y", "z"])


class Mine(agent_loops.ToolLoop):
    """A user's loop, which verl makes for each response."""


def test_a_users_loop_has_its_workers_threads_and_renders_a_prompt_once(monkeypatch, tmp_path):
    (tmp_path / "mine.py").write_text('def f(x: int) -> str:\n    """F.\n\n    Args:\n        x: x\n    """\n')
    settings = ToolSettings(str(tmp_path / "mine.py"), "hermes", 3, seconds=1, characters=9)
    monkeypatch.setenv(VARIABLE, json.dumps(asdict(settings)))
    monkeypatch.setattr(agent_loops.ToolLoop, "_rules", None)
    tokenizer = chat_tokenizer(str(ROOT / "recipes/tasks/gsm8k/tiny"))

    def init(self: Any, **given: Any) -> None:
        self.tokenizer, self.apply_chat_template_kwargs, self.loop = tokenizer, {}, asyncio.get_running_loop()
        self.rollout_config = SimpleNamespace(prompt_length=64, response_length=60, full_determinism=False)
        self.server_manager = SimpleNamespace(generate=generate)

    async def generate(**_: Any) -> Any:
        return SimpleNamespace(
            token_ids=tokenizer.encode("4<|im_end|>"), log_probs=None, num_preempted=0, extra_fields={}
        )

    rendered, render = [], tokenizer.apply_chat_template
    monkeypatch.setattr(agent_loops.ToolAgentLoop, "__init__", init)
    monkeypatch.setattr(
        tokenizer, "apply_chat_template", lambda said, **given: rendered.append(str(said)) or render(said, **given)
    )

    async def responses() -> list[AgentLoopOutput]:
        agent_loops.SHARED.set({})
        loops = [Mine(tools=SimpleNamespace(tools=load_tools(settings.file)), hf_model_type="llama") for _ in range(3)]
        assert len({id(loop._rules.tools) for loop in loops}) == 1
        prompts = [[{"role": "user", "content": text}] for text in ("2 + 2?", "2 + 2?", "1 + 3?")]
        return await asyncio.gather(*(loop.run({}, raw_prompt=each) for loop, each in zip(loops, prompts, strict=True)))

    one, again, other = asyncio.run(responses())
    assert sum("2 + 2?" in said for said in rendered) == 1
    assert one.prompt_ids == again.prompt_ids != other.prompt_ids
    assert {tuple(each.response_mask) for each in (one, again, other)} == {(1, 1)}


@pytest.mark.parametrize(
    ("gpus", "tensor", "mode", "router", "asked"),
    [(2, 2, "sync", None, 1), (2, 1, "sync", None, 3), (2, 2, "colocate_async", None, 3), (2, 2, "sync", "my.yaml", 3)],
)
def test_which_server_takes_a_request_is_asked_once_where_there_is_one(monkeypatch, gpus, tensor, mode, router, asked):
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
    rollout["router_config_path"] = router
    trained = {"nnodes": 1, "n_gpus_per_node": gpus, "v1": {"trainer_mode": mode}}
    config = OmegaConf.create({"actor_rollout_ref": {"rollout": rollout}, "trainer": trained})
    monkeypatch.setattr(
        agent_loops.AgentLoopManagerTQ, "__init__", lambda self, config, client: setattr(self, "c", client)
    )
    client = agent_loops.AgentLoops(config, LLMServerClient(config, balancer)).c

    async def request(number: int) -> None:
        server, _ = await client._acquire_server(str(number))
        client._release_server(server, request_id=str(number))

    async def three() -> None:
        await asyncio.gather(request(0), request(1))
        await request(2)

    asyncio.run(three())
    assert (calls.count("acquire_server"), calls.count("release_server")) == (asked, 0 if asked == 1 else 3)
