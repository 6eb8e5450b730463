"""The vLLM server of one replica, and the part of it that runs in the worker."""

from __future__ import annotations

import multiprocessing
import os
from typing import Any

import ray
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer, vLLMReplica

from recipes.engines.verl_cpu import patches, spawn

patches.apply_to_vllm()


class CpuHttpServer(vLLMHttpServer):
    """verl's server, whose engine process is forked rather than started where a fork server runs."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if spawn.INTERPRETER in os.environ:
            multiprocessing.set_executable(os.environ[spawn.INTERPRETER])

    def _get_worker_extension_cls(self) -> str:
        return "recipes.engines.verl_cpu.vllm_worker.CpuWorkerExtension"


class CpuReplica(vLLMReplica):
    """verl's replica, with that server."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.server_class = ray.remote(CpuHttpServer)
