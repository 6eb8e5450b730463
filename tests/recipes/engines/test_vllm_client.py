"""The sender of weights does not wait for a receiver that has failed."""

from __future__ import annotations

import asyncio
import importlib.util
import threading
from types import SimpleNamespace

import pytest
import zmq

pytestmark = pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="needs vLLM")


@pytest.fixture
def vllm_client(monkeypatch):
    from recipes.engines.verl_cpu import patches

    patches.name_vllm()
    from verl.workers.rollout.vllm_rollout import bucketed_weight_transfer

    from recipes.engines import vllm_client

    nothing = SimpleNamespace(synchronize=lambda: None, ipc_collect=lambda: None, empty_cache=lambda: None)
    monkeypatch.setattr(bucketed_weight_transfer, "get_torch_device", lambda: nothing)
    monkeypatch.setattr(vllm_client, "POLL_MILLISECONDS", 20)
    return vllm_client


@pytest.mark.parametrize("acknowledged", [0, 1, 2])
def test_the_receivers_error_ends_the_sending(vllm_client, monkeypatch, tmp_path, acknowledged):
    """vLLM's worker fails before it receives anything, before the first tensors, or while it loads them."""
    import torch

    address, failed = f"ipc://{tmp_path}/weights.sock", threading.Event()

    def receive() -> None:
        socket = zmq.Context.instance().socket(zmq.REP)
        socket.connect(address)
        for _ in range(acknowledged):
            socket.recv_pyobj()
            socket.send(b"")
        failed.set()
        socket.close(linger=100)

    def result(_: object) -> None:
        raise RuntimeError("Worker failed")

    monkeypatch.setattr(vllm_client.ray, "wait", lambda calls, **_: (calls if failed.is_set() else [], []))
    monkeypatch.setattr(vllm_client.ray, "get", result)
    sender = vllm_client.WatchfulSender("the call", zmq_handle=address, bucket_size_mb=1, use_shm=True)
    weights = ((f"layer {number}", torch.zeros(200_000)) for number in range(4))  # two buckets
    receiver = threading.Thread(target=receive)
    receiver.start()
    with pytest.raises(RuntimeError, match="Worker failed"):
        asyncio.run(sender.async_send_weights(weights))
    receiver.join()
    assert not list(tmp_path.iterdir()), "the socket's file is gone"
