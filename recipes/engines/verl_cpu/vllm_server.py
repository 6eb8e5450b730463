"""The vLLM server of one replica, and the part of it that runs in the worker."""

from __future__ import annotations

from typing import Any

import ray
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer, vLLMReplica


class CpuHttpServer(vLLMHttpServer):
    """verl's server; only the class that vLLM mixes into its worker differs."""

    def _get_worker_extension_cls(self) -> str:
        return "recipes.engines.verl_cpu.vllm_worker.CpuWorkerExtension"


class CpuReplica(vLLMReplica):
    """verl's replica, with that server."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.server_class = ray.remote(CpuHttpServer)
