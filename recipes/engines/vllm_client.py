"""verl's client of its vLLM server, in each rank of the trainer: it sends weights until the receiver's call ends.

The socket has the name that `transfer_sockets.py` gives both ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ray
import torch
import zmq
from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightSender
from verl.workers.rollout.vllm_rollout.vllm_rollout import ServerAdapter

from recipes.engines import transfer_sockets

POLL_MILLISECONDS = 500


class WatchedSocket:
    """The three calls that the sender makes of a ZMQ socket; while one waits, `check` may raise.

    No clock ends the wait, since a server that lives may be starved by other programs. The launcher's watchdog ends a
    run that does nothing (`recipes/monitor/supervise.py`).
    """

    def __init__(self, socket: Any, check: Callable[[], None]) -> None:
        self._socket, self._check = socket, check

    def send_pyobj(self, value: Any) -> None:
        self._wait(zmq.POLLOUT)
        self._socket.send_pyobj(value)

    def recv(self) -> bytes:
        self._wait(zmq.POLLIN)
        return self._socket.recv()

    def close(self) -> None:
        self._socket.close(linger=0)

    def _wait(self, event: int) -> None:
        while not self._socket.poll(POLL_MILLISECONDS, event):
            self._check()


class WatchfulSender(BucketedWeightSender):
    """verl's sender of weights, which gives up once the receiver's call has ended.

    verl's own waits for each acknowledgement without a limit
    (verl/workers/rollout/vllm_rollout/bucketed_weight_transfer.py:136 (`self.socket.recv()`)), so that an exception in
    vLLM's worker hangs the run. Here the wait ends with that exception.

    Where one engine spans several GPUs, its first rank makes the call, and vLLM answers once its first worker has. If
    another worker fails alone, the ranks wait until a collective's limit or the launcher's watchdog.

    Args:
        receiving: reference to the result of the receiver's call; None on ranks that did not make it.
    """

    def __init__(self, receiving: ray.ObjectRef | None, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._receiving = receiving

    def _init_socket(self) -> None:
        super()._init_socket()
        self.socket: Any = WatchedSocket(self.socket, self._check)

    def _check(self) -> None:
        if self._receiving is None:
            return
        ended, _ = ray.wait([self._receiving], timeout=0)
        if ended:
            ray.get(ended[0])
            raise RuntimeError("vLLM stopped receiving weights before all were sent")


class WatchfulServerAdapter(ServerAdapter):
    """verl's client with that sender, and with the job id in its socket's name replaced."""

    zmq_handle: str

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        job_id = ray.get_runtime_context().get_job_id()
        self.zmq_handle = self.zmq_handle.replace(f"-zmq-{job_id}-", f"-zmq-{transfer_sockets.job()}-")

    @torch.no_grad()
    async def update_weights(
        self, weights: Any, global_steps: int | None = None, wire_format: str = "named_tensors", **kwargs: Any
    ) -> None:
        """Send all weights as verl does (verl/workers/rollout/vllm_rollout/vllm_rollout.py:210
        (`async def update_weights(`)).

        Changes of weights (`delta_flush`) go through verl's own method, which waits without a limit.
        """
        if wire_format != "named_tensors":
            await super().update_weights(weights, global_steps=global_steps, wire_format=wire_format, **kwargs)
            return
        receiving = await self._execute_method(
            "update_weights_from_ipc", non_block=True, kwargs={**kwargs, "use_shm": self.use_shm}
        )
        sender = WatchfulSender(
            receiving,
            zmq_handle=self.zmq_handle,
            bucket_size_mb=self.config.checkpoint_engine.update_weights_bucket_megabytes,
            use_shm=self.use_shm,
        )
        await sender.async_send_weights(weights)
        # As verl's own: the server answers, and forgets what the old weights computed.
        if receiving is not None:
            await receiving
        if self._has_server:
            await self.server_handle.clear_kv_cache.remote()
            if global_steps is not None:
                await self.server_handle.set_global_steps.remote(global_steps)
