"""verl's client of its vLLM server, in each rank of the trainer.

The socket's name contains the Ray cluster's address and the job's id. Every new cluster gives its first job the same
id, and two clusters that run at the same time have different addresses.
"""

from __future__ import annotations

from typing import Any

import ray
from verl.workers.rollout.vllm_rollout import vllm_rollout

from recipes.engines.verl import upstream
from recipes.engines.verl.weight_sender import RECEIVING


class WatchfulServerAdapter(vllm_rollout.ServerAdapter):
    """verl's client with `WatchfulSender`, and with `upstream.job()` instead of Ray's job id in the socket's name."""

    zmq_handle: str

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        upstream.apply("client")
        super().__init__(*args, **kwargs)
        job_id = ray.get_runtime_context().get_job_id()
        self.zmq_handle = self.zmq_handle.replace(f"-zmq-{job_id}-", f"-zmq-{upstream.job()}-")

    async def _execute_method(self, method: str, non_block: bool = False, **arguments: Any) -> Any:
        """Call a method of vLLM's workers; a call with `non_block` receives weights, and its result is kept."""
        result = await super()._execute_method(method, non_block, **arguments)
        if non_block:
            RECEIVING.set(result)
        return result
