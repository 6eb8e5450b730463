"""The sender of weights does not wait for a receiver that has failed."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace

import pytest
import zmq


@pytest.fixture
def vllm_client(monkeypatch, vllm_named):
    from verl.workers.rollout.vllm_rollout import bucketed_weight_transfer

    from recipes.engines.verl import vllm_client

    nothing = SimpleNamespace(synchronize=lambda: None, ipc_collect=lambda: None, empty_cache=lambda: None)
    monkeypatch.setattr(bucketed_weight_transfer, "get_torch_device", lambda: nothing)
    monkeypatch.setattr(vllm_client, "POLL_MILLISECONDS", 20)
    return vllm_client


class Receiver(threading.Thread):
    """vLLM's worker: it acknowledges so many messages, and then it fails, or closes its end as verl's does."""

    def __init__(self, address: str, acknowledged: int) -> None:
        super().__init__()
        self.address, self.acknowledged, self.ended = address, acknowledged, threading.Event()

    def run(self) -> None:
        socket = zmq.Context.instance().socket(zmq.REP)
        socket.setsockopt(zmq.RCVTIMEO, 20_000)  # a sender that failed sends nothing: the test fails and does not hang
        socket.connect(self.address)
        for _ in range(self.acknowledged):
            socket.recv_pyobj()
            socket.send(b"")
        self.ended.set()
        socket.close(linger=100)


def send(vllm_client, receiver: Receiver) -> None:
    """Send five messages: one that announces four buckets, and the buckets."""
    import torch

    sender = vllm_client.WatchfulSender(zmq_handle=receiver.address, bucket_size_mb=1, use_shm=True)
    weights = ((f"layer {number}", torch.zeros(200_000)) for number in range(4))
    receiver.start()
    try:
        asyncio.run(sender.async_send_weights(weights))
    finally:
        receiver.join()


@pytest.mark.parametrize("acknowledged", [0, 1, 2])
def test_the_receivers_error_ends_the_sending(vllm_client, monkeypatch, tmp_path, acknowledged):
    """vLLM's worker fails before it receives anything, before the first tensors, or while it loads them."""
    receiver = Receiver(f"ipc://{tmp_path}/weights.sock", acknowledged)

    def result(_: object) -> None:
        raise RuntimeError("Worker failed")

    def wait(calls: list, timeout: float) -> tuple[list, list]:
        return (calls, []) if receiver.ended.wait(timeout) else ([], calls)

    monkeypatch.setattr(vllm_client.ray, "wait", wait)
    monkeypatch.setattr(vllm_client.ray, "get", result)
    called = vllm_client.RECEIVING.set("the call")
    with pytest.raises(RuntimeError, match="Worker failed"):
        send(vllm_client, receiver)
    vllm_client.RECEIVING.reset(called)
    assert not list(tmp_path.iterdir()), "the socket's file is gone"


@pytest.mark.parametrize("acknowledged", [1, 2])
def test_a_rank_that_did_not_call_sees_its_own_receiver_fail(vllm_client, tmp_path, acknowledged):
    """The second worker of an engine over two GPUs fails: the first rank's call has not ended."""
    with pytest.raises(RuntimeError, match="vLLM"):
        send(vllm_client, Receiver(f"ipc://{tmp_path}/weights.sock", acknowledged))


def test_a_receiver_that_ends_after_its_last_answer_has_received_all(vllm_client, monkeypatch, tmp_path):
    """Also where the sender looks only when the answer, the end of the call and of the socket are all there."""
    receiver = Receiver(f"ipc://{tmp_path}/weights.sock", 5)
    monkeypatch.setattr(vllm_client.ray, "wait", lambda calls, timeout: (calls, []))
    monkeypatch.setattr(vllm_client.ray, "get", lambda call: None)
    poll = zmq.Poller.poll

    def late(self: zmq.Poller, limit: int) -> list:
        if receiver.ended.wait(0.05):
            receiver.join()
        return poll(self, limit)

    monkeypatch.setattr(zmq.Poller, "poll", late)
    send(vllm_client, receiver)
