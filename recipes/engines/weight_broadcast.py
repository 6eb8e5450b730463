"""Weights from the GPUs that train to those that only generate: broadcasts of torch.distributed, in buckets.

verl's own way between separate GPUs, `checkpoint_engine.backend=nccl`, needs CuPy and has none for CPUs
(verl/checkpoint_engine/nccl_checkpoint_engine.py:23 (`import cupy as cp`)). This one needs PyTorch alone: NCCL between
GPUs, gloo between CPUs. verl imports the module in every process that takes part, because
`actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module` names it.

The first rank that trains sends; the others that train only take part in gathering each weight. Names and sizes of a
bucket's tensors go through a store beside the group.
"""

from __future__ import annotations

import pickle
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import ray
import torch
from torch.distributed import BroadcastOptions, PrefixStore, ProcessGroupGloo, TCPStore
from verl.checkpoint_engine import CheckpointEngine, CheckpointEngineRegistry, TensorMeta
from verl.checkpoint_engine.base import merge_weight_chunks, split_weight_chunks
from verl.utils.device import get_device_id, get_device_name
from verl.workers.rollout.utils import ensure_async_iterator

from recipes.engines.separate_rollout import BACKEND

PATIENCE = timedelta(minutes=30)
"""The launcher's watchdog ends a hang sooner (recipes/monitor/supervise.py)."""
ALIGNMENT = 16
"""Bytes to whose multiples tensors begin in a bucket, so that each can be read as its own number type."""
Bucket = list[TensorMeta]


@CheckpointEngineRegistry.register(BACKEND)
class BroadcastEngine(CheckpointEngine):
    """One process's end of the broadcast.

    Args:
        bucket_size: bytes of the buffer that each process holds while weights travel.
        is_master: whether this process sends.
    """

    def __init__(self, bucket_size: int, is_master: bool = False) -> None:
        self.bucket_size, self.is_master = bucket_size, is_master
        self.store: TCPStore | None = None
        self.group: Any = None
        self.buffer: torch.Tensor | None = None
        self.rank = -1
        self.buckets = 0  # that were sent since the start: the number of the next one's entry in the store

    def prepare(self) -> tuple[str, int] | None:
        """Make the buffer; return where the sender's store listens, and nothing of the others."""
        if not self.is_master:
            return None
        if self.store is None:
            host = ray.util.get_node_ip_address().strip("[]")
            self.store = TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=PATIENCE)
            self.address = host, self.store.port
        return self.address

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[Any]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        """Number the processes: the sender 0, the receivers from 1 on, and -1 the others that train."""
        size = 1 + rollout_world_size

        def arguments(ranks: list[int]) -> dict[str, list[Any]]:
            return {"rank": ranks, "world_size": [size] * len(ranks), "address": [metadata[0]] * len(ranks)}

        return arguments([0] + [-1] * (actor_wg_world_size - 1)), arguments(list(range(1, size)))

    def init_process_group(self, rank: int, world_size: int, address: tuple[str, int]) -> None:
        """Join the group, the first time; later weights go through the same one."""
        self.rank = rank
        if rank < 0:
            return
        self.buffer = torch.empty(self.bucket_size, dtype=torch.uint8, device=get_device_id() if _on_gpus() else "cpu")
        if self.group is None:
            if self.store is None:
                self.store = TCPStore(*address, is_master=False, timeout=PATIENCE)
            self.group = _group(PrefixStore("group", self.store), rank, world_size)

    def finalize(self) -> None:
        """Free the buffer; the group stays."""
        self.buffer = None
        if _on_gpus():
            torch.cuda.empty_cache()

    @torch.no_grad()
    async def send_weights(self, weights: Any, global_steps: int | None = None) -> None:
        """Broadcast (name, tensor) pairs; every rank that trains has to call it, since gathering a weight takes all."""
        if self.rank < 0:
            async for _ in ensure_async_iterator(weights):
                pass
            return
        buffer, bucket, end = self._held(), Bucket(), 0
        async for meta, chunk in split_weight_chunks(weights, self.bucket_size):
            start = -(-end // ALIGNMENT) * ALIGNMENT
            if start + meta.chunk_size > self.bucket_size:
                self._send(bucket, end, last=False)
                bucket, start = Bucket(), 0
            end = start + meta.chunk_size
            buffer[start:end].copy_(chunk)
            bucket.append(replace(meta, offset=start))
        self._send(bucket, end, last=True)

    async def receive_weights(self, global_steps: int | None = None) -> AsyncIterator[tuple[str, torch.Tensor]]:
        """Yield the (name, tensor) pairs that are sent; a tensor is valid until the next one is asked for."""
        async for name, weight in merge_weight_chunks(self._chunks(), self.bucket_size):
            yield name, weight

    async def _chunks(self) -> AsyncIterator[tuple[TensorMeta, torch.Tensor]]:
        buffer, last = self._held(), False
        while not last:
            assert self.store is not None
            bucket, end, last = pickle.loads(self.store.get(f"bucket/{self.buckets}"))
            self._broadcast(buffer[:end])
            self.buckets += 1
            for meta in bucket:
                yield meta, buffer[meta.offset : meta.offset + meta.chunk_size]

    def _send(self, bucket: Bucket, end: int, last: bool) -> None:
        assert self.store is not None
        self.store.set(f"bucket/{self.buckets}", pickle.dumps((bucket, end, last)))
        self._broadcast(self._held()[:end])
        # All have read the entry before, since they have this bucket.
        self.store.delete_key(f"bucket/{self.buckets - 1}")
        self.buckets += 1

    def _broadcast(self, part: torch.Tensor) -> None:
        options = BroadcastOptions()
        options.rootRank = options.rootTensor = 0
        self.group.broadcast([part], options).wait()
        if part.is_cuda:
            torch.cuda.synchronize()

    def _held(self) -> torch.Tensor:
        assert self.buffer is not None, "verl makes the group before each transfer"
        return self.buffer


def _on_gpus() -> bool:
    return get_device_name() == "cuda" and torch.cuda.is_available()


def _group(store: PrefixStore, rank: int, size: int) -> Any:
    """A group beside torch's default one, which holds only the ranks that train."""
    if not _on_gpus():
        return ProcessGroupGloo(store, rank, size, PATIENCE)
    from torch.distributed import ProcessGroupNCCL

    options = ProcessGroupNCCL.Options()
    options._timeout = PATIENCE
    return ProcessGroupNCCL(store, rank, size, options)
