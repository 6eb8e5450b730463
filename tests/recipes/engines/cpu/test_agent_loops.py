"""A single server is asked for once."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from recipes.engines.cpu import agent_loops


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
