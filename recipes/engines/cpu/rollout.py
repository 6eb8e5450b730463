"""verl's vLLM rollout on vLLM's CPU build: replica, server, and the part inside vLLM's worker.

verl imports this module in the driver, in the server, and in the process that loads vLLM's model; `engine.py`
registers `CpuReplica`.
"""

from typing import Any

import ray
from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer, vLLMReplica

from recipes.engines.verl import upstream

upstream.apply("cpu vllm", "server")


class CpuWorkerExtension(vLLMColocateWorkerExtension):
    """verl's receiver of weights. vLLM imports it by name before it loads the model; `upstream.apply` then runs too."""


class CpuHttpServer(vLLMHttpServer):
    def _get_worker_extension_cls(self) -> str:
        return f"{CpuWorkerExtension.__module__}.{CpuWorkerExtension.__name__}"


class CpuReplica(vLLMReplica):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.server_class = ray.remote(CpuHttpServer)
