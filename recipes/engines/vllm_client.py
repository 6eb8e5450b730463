"""verl's client of its vLLM server, which sends weights to the socket that `transfer_sockets.py` names."""

from __future__ import annotations

from typing import Any

import ray
from verl.workers.rollout.vllm_rollout.vllm_rollout import ServerAdapter

from recipes.engines import transfer_sockets


class NamedServerAdapter(ServerAdapter):
    """One for each rank of the trainer."""

    zmq_handle: str

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        verls = ray.get_runtime_context().get_job_id()
        self.zmq_handle = self.zmq_handle.replace(f"-zmq-{verls}-", f"-zmq-{transfer_sockets.job()}-")
