"""Send weights from the GPUs that train to those that only generate, by broadcasts of torch.distributed.

verl's own transfer between separate GPUs, `checkpoint_engine.backend=nccl`, needs CuPy and does not run on CPUs
(verl/checkpoint_engine/nccl_checkpoint_engine.py:23 (`import cupy as cp`)). This one needs only PyTorch: it uses NCCL
between GPUs and gloo between CPUs. verl imports the module in every process that sends or receives, because
`actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module` names it.

The first training rank sends; the other training ranks only help to gather each weight. The weights are sent in
buckets. A `TCPStore` carries the names and sizes of the tensors in each bucket.
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

TIMEOUT = timedelta(minutes=30)
"""How long a process waits for others. The launcher's watchdog ends a hang sooner (recipes/runs/supervise.py)."""
ALIGNMENT = 16
"""In a bucket each tensor begins at a multiple of so many bytes, so that its bytes can be viewed as its number type."""
Bucket = list[TensorMeta]


@CheckpointEngineRegistry.register(BACKEND)
class BroadcastEngine(CheckpointEngine):
    """The broadcasts in one process, which sends, receives, or only helps to gather.

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
        self.buckets = 0  # sent since the start; also the number of the next bucket in the store

    def prepare(self) -> tuple[str, int] | None:
        """Return the address of the sender's store, which the first call starts; None in the other processes."""
        if not self.is_master:
            return None
        if self.store is None:
            host = ray.util.get_node_ip_address().strip("[]")
            self.store = TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=TIMEOUT)
            self.address = host, self.store.port
        return self.address

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[Any]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        """Number the processes: 0 the sender, from 1 on the receivers, -1 the other training ranks."""
        size = 1 + rollout_world_size

        def arguments(ranks: list[int]) -> dict[str, list[Any]]:
            return {"rank": ranks, "world_size": [size] * len(ranks), "address": [metadata[0]] * len(ranks)}

        return arguments([0] + [-1] * (actor_wg_world_size - 1)), arguments(list(range(1, size)))

    def init_process_group(self, rank: int, world_size: int, address: tuple[str, int]) -> None:
        """Make the buffer, and join the group at the first call. Later calls use the same group."""
        self.rank = rank
        if rank < 0:
            return
        self.buffer = torch.empty(self.bucket_size, dtype=torch.uint8, device=get_device_id() if _on_gpus() else "cpu")
        if self.group is None:
            if self.store is None:
                self.store = TCPStore(*address, is_master=False, timeout=TIMEOUT)
            self.group = _group(PrefixStore("group", self.store), rank, world_size)

    def finalize(self) -> None:
        """Free the buffer; the group stays."""
        self.buffer = None
        if _on_gpus():
            torch.cuda.empty_cache()

    @torch.no_grad()
    async def send_weights(self, weights: Any, global_steps: int | None = None) -> None:
        """Broadcast (name, tensor) pairs. Every training rank has to call this: all gather a weight together."""
        if self.rank < 0:
            async for _ in ensure_async_iterator(weights):
                pass
            return
        buffer, bucket, end = self._made_buffer(), Bucket(), 0
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
        buffer, last = self._made_buffer(), False
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
        self._broadcast(self._made_buffer()[:end])
        # Every receiver has read the entry before this one, since it has received this bucket.
        self.store.delete_key(f"bucket/{self.buckets - 1}")
        self.buckets += 1

    def _broadcast(self, part: torch.Tensor) -> None:
        options = BroadcastOptions()
        options.rootRank = options.rootTensor = 0
        self.group.broadcast([part], options).wait()
        if part.is_cuda:
            torch.cuda.synchronize()

    def _made_buffer(self) -> torch.Tensor:
        assert self.buffer is not None, "verl makes the group before each transfer"
        return self.buffer


def _on_gpus() -> bool:
    return get_device_name() == "cuda" and torch.cuda.is_available()


def _group(store: PrefixStore, rank: int, size: int) -> Any:
    """A group beside torch's default one, which holds only the ranks that train."""
    if not _on_gpus():
        return ProcessGroupGloo(store, rank, size, TIMEOUT)
    from torch.distributed import ProcessGroupNCCL

    options = ProcessGroupNCCL.Options()
    options._timeout = TIMEOUT
    return ProcessGroupNCCL(store, rank, size, options)
