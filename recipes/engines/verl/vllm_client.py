"""verl's client of its vLLM server, and its sender of weights, in each rank of the trainer.

The socket's name contains the Ray cluster's address and the job's id. Every new cluster gives its first job the same
id, and two clusters that run at the same time have different addresses. The sender stops when the receiver fails.
"""

from contextvars import ContextVar
from typing import Any

import ray
import zmq
from verl.workers.rollout.vllm_rollout import vllm_rollout
from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightSender

from recipes.engines.verl import upstream

POLL_MILLISECONDS = 500
CAUSE_SECONDS = 60.0
"""Seconds to wait for the receiver's call to end, with its error, after the receiver has closed its socket."""
RECEIVING: ContextVar[ray.ObjectRef | None] = ContextVar("RECEIVING", default=None)
"""The result of the receiver's call; None on ranks that did not make it. Where one engine spans several GPUs, only its
first rank makes the call."""


class WatchfulServerAdapter(vllm_rollout.ServerAdapter):
    """verl's client with `WatchfulSender`, and with `upstream.job()` instead of Ray's job id in the socket's name."""

    zmq_handle: str

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        job_id = ray.get_runtime_context().get_job_id()
        self.zmq_handle = self.zmq_handle.replace(f"-zmq-{job_id}-", f"-zmq-{upstream.job()}-")

    async def _execute_method(self, method: str, non_block: bool = False, **arguments: Any) -> Any:
        """Call a method of vLLM's workers; a call with `non_block` receives weights, and its result is kept."""
        result = await super()._execute_method(method, non_block, **arguments)
        if non_block:
            RECEIVING.set(result)
        return result


class WatchedSocket:
    """The three ZMQ calls that the sender uses; a wait raises when the receiver has ended.

    A wait has no timeout while the receiver lives, as other programs may slow it down. The launcher's watchdog ends a
    run that does nothing (`recipes/runs/supervise.py`).
    """

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._socket = socket
        self._disconnected = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)

    def send_pyobj(self, value: Any) -> None:
        self._wait(zmq.POLLOUT)
        self._socket.send_pyobj(value)

    def recv(self) -> bytes:
        self._wait(zmq.POLLIN)
        return self._socket.recv()

    def close(self) -> None:
        self._socket.disable_monitor()
        self._disconnected.close(linger=0)
        self._socket.close(linger=0)

    def _wait(self, event: int) -> None:
        """Wait until the socket is ready. Raises the error of the receiver's call, else RuntimeError."""
        poller = zmq.Poller()
        poller.register(self._socket, event)
        poller.register(self._disconnected, zmq.POLLIN)
        while self._socket not in (ready := dict(poller.poll(POLL_MILLISECONDS))):
            closed, receiving = self._disconnected in ready, RECEIVING.get()
            ended = receiving and ray.wait([receiving], timeout=CAUSE_SECONDS if closed else 0)[0]
            if self._socket.poll(0, event):
                return  # the last answer, which came before the end
            if ended:
                ray.get(ended[0])
            if ended or closed:
                raise RuntimeError(
                    "a worker of vLLM stopped receiving weights before all were sent; its error is in the log"
                )


class WatchfulSender(BucketedWeightSender):
    """verl's sender, which raises once its receiver has ended.

    Each rank notices when its worker closes the socket, and the rank that called the receivers notices when that call
    ends, which is when the engine's first worker has received all. So neither notices another worker that fails before
    it opens its socket. The run then ends at once if adapters are sent; if whole weights are sent, the ranks wait for
    one another, until a collective's timeout or the watchdog ends the run.
    """

    def _init_socket(self) -> None:
        super()._init_socket()
        self.socket: Any = WatchedSocket(self.socket)


# Both ways of sending, `update_weights` and `_update_delta_weights`, look the class up by its name in their module.
vllm_rollout.BucketedWeightSender = WatchfulSender
