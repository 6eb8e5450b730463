"""verl's client of its vLLM server, which sends weights to the socket that `transfer_sockets.py` names."""

from __future__ import annotations

from typing import Any

import ray
from verl.workers.rollout.vllm_rollout.vllm_rollout import ServerAdapter

from recipes.engines import transfer_sockets


class NamedServerAdapter(ServerAdapter):
    """verl's client in a rank of the trainer, with the job id in its socket's name replaced."""

    zmq_handle: str

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        job_id = ray.get_runtime_context().get_job_id()
        self.zmq_handle = self.zmq_handle.replace(f"-zmq-{job_id}-", f"-zmq-{transfer_sockets.job()}-")
