"""Weights reach a process that only generates bit for bit, whatever their sizes and types, time after time."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from queue import Queue

import torch

from recipes.engines.weight_broadcast import BroadcastEngine

BUCKET = 1000
"""Bytes; the second tensor is larger, and takes several buckets."""


def weights(version: int) -> list[tuple[str, torch.Tensor]]:
    drawn = torch.Generator().manual_seed(version)
    sizes = [("odd", (3,), torch.bfloat16), ("large", (20, 31), torch.float32), ("last", (7, 9), torch.bfloat16)]
    return [(name, torch.randn(size, generator=drawn).to(dtype)) for name, size, dtype in sizes]


def end(role: str, rank: int, address: Queue) -> list[bool]:
    """One process's end, in a thread: the sender, a second rank that trains, or a receiver."""

    async def transfer(engine: BroadcastEngine, version: int) -> list[tuple[str, torch.Tensor]]:
        if role == "receives":
            return [(name, weight.clone()) async for name, weight in engine.receive_weights()]
        await engine.send_weights(iter(weights(version)))
        return []

    engine, same, place = BroadcastEngine(BUCKET, is_master=role == "sends"), [], None
    for version in range(3):
        if role == "sends" and version == 0:
            for _ in range(2):
                address.put(engine.prepare())
        place = place or (address.get(timeout=60) if role == "receives" else engine.prepare())
        engine.init_process_group(rank, 3, place)
        got, sent = asyncio.run(transfer(engine, version)), weights(version)
        engine.finalize()
        if role == "receives":
            pairs = zip(got, sent, strict=True)
            same.append(all(a == b and torch.equal(x, y) and x.dtype == y.dtype for (a, x), (b, y) in pairs))
    return same


def test_every_receiver_has_the_weights_that_were_sent():
    roles = [("sends", 0), ("gathers", -1), ("receives", 1), ("receives", 2)]
    address: Queue = Queue()
    with ThreadPoolExecutor(len(roles)) as pool:
        ends = [pool.submit(end, role, rank, address) for role, rank in roles]
        assert [each.result(timeout=50) for each in ends] == [[], [], [True] * 3, [True] * 3]


def test_only_the_first_rank_that_trains_sends():
    training, generating = BroadcastEngine.build_topology(3, 2, [("10.0.0.1", 1), None, None, None, None])
    assert (training["rank"], generating["rank"]) == ([0, -1, -1], [1, 2])
    assert training["world_size"] + generating["world_size"] == [3] * 5
    assert set(training["address"] + generating["address"]) == {("10.0.0.1", 1)}
