"""Fewer messages between processes: what is stored, asked and scored stays the same."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from recipes.engines.cpu import agent_loops


class Queue:
    """A transfer queue whose messages end when `finish` is called, or fail with `failure`."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, list[str]]] = []
        self.open: list[asyncio.Future[None]] = []
        self.rows: dict[str, dict[str, Any]] = {}

    async def async_kv_batch_put(self, *, keys: list[str], partition_id: str, fields: Any, tags: list[Any]) -> None:
        self.messages.append((partition_id, keys))
        self.open.append(asyncio.get_running_loop().create_future())
        await self.open[-1]
        for index, (key, tag) in enumerate(zip(keys, tags, strict=True)):
            self.rows[key] = {"tag": tag, **{name: fields[name][index] for name in fields.sorted_keys}}

    def finish(self, error: Exception | None = None) -> None:
        future = self.open.pop()
        future.set_exception(error) if error else future.set_result(None)


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> Queue:
    queue = Queue()
    monkeypatch.setattr(agent_loops, "transfer_queue", queue)
    return queue


async def rest() -> None:
    """Let every task go on until it waits."""
    for _ in range(10):
        await asyncio.sleep(0)


def put(puts: agent_loops.GroupedPuts, number: int, partition: str = "train", **more: Any) -> asyncio.Task[None]:
    row = {"tokens": torch.arange(number), "text": f"row {number}", **more}
    return asyncio.create_task(puts.async_kv_batch_put([str(number)], partition, [row], [{"tag": number}]))


def test_responses_that_wait_for_a_message_share_the_next_one(queue: Queue) -> None:
    async def run() -> None:
        puts = agent_loops.GroupedPuts()
        first = put(puts, 1)
        await rest()
        later = [put(puts, 2), put(puts, 3), put(puts, 4, "val"), put(puts, 5, more="column")]
        await rest()
        assert queue.messages == [("train", ["1"])]
        queue.finish()
        await rest()
        assert first.done()
        assert not later[0].done(), "its own message is still under way"
        for _ in range(3):
            queue.finish()
            await rest()
        assert all(task.done() for task in later)
        assert queue.messages[1:] == [("train", ["2", "3"]), ("val", ["4"]), ("train", ["5"])]
        again = put(puts, 6)
        await rest()
        queue.finish()
        await again

    asyncio.run(run())
    assert set(queue.rows) == {"1", "2", "3", "4", "5", "6"}
    for number in range(1, 7):
        row = queue.rows[str(number)]
        assert row["tokens"].tolist() == list(range(number))
        assert (row["text"], row["tag"]) == (f"row {number}", {"tag": number})


def test_a_failure_is_told_to_those_whose_responses_were_in_the_message(queue: Queue) -> None:
    async def run() -> None:
        puts = agent_loops.GroupedPuts()
        first, second = put(puts, 1), put(puts, 2)
        await rest()
        queue.finish(OSError("storage is gone"))
        await rest()
        for task in (first, second):
            with pytest.raises(OSError, match="gone"):
                await task
        third = put(puts, 3)
        await rest()
        queue.finish()
        await third

    asyncio.run(run())


class Balancer:
    """verl's load balancer as a Ray actor: `name.remote(...)`."""

    def __init__(self, servers: int) -> None:
        self.servers = {f"server-{number}": object() for number in range(servers)}
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        answers = {
            "require_acquire_fields": list,
            "require_release_fields": lambda: ["request_id"],
            "get_all_servers": lambda: list(self.servers),
            "acquire_server": lambda **_: next(iter(self.servers.items())),
            "release_server": lambda **_: None,
        }

        def remote(**arguments: Any) -> Any:
            self.calls.append(name)
            answer = asyncio.get_running_loop().create_future()
            answer.set_result(answers[name](**arguments))
            return answer

        return SimpleNamespace(remote=remote)


@pytest.mark.parametrize(("servers", "asked"), [(1, 1), (2, 3)])
def test_a_single_server_is_asked_for_once(servers: int, asked: int) -> None:
    balancer = Balancer(servers)

    async def run() -> None:
        client = agent_loops.OneServerClient(None, balancer)
        for number in range(3):
            server, _ = await client._acquire_server(f"request-{number}")
            client._release_server(server, f"request-{number}")

    asyncio.run(run())
    for name in ("acquire_server", "release_server"):
        assert balancer.calls.count(name) == asked
