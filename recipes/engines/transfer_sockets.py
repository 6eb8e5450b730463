"""The sockets between trainer and vLLM, with names that two runs on one machine cannot share.

verl names them by Ray's job id, to keep runs apart: verl/workers/rollout/vllm_rollout/vllm_rollout.py:140
(`get_job_id()`), and in vLLM's processes by a variable, verl/workers/rollout/vllm_rollout/vllm_async_server.py:143
(`VERL_RAY_JOB_ID`). Every new cluster gives its first job the same id, so that two runs with clusters of their own
would use the same name in /tmp. Here the cluster's address stands beside the id: two that live at once differ in it.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from typing import Any

import ray

CLIENT = "recipes.engines.vllm_client.NamedServerAdapter"
"""verl's client with that name, which it imports where it needs one."""
SERVER = "verl.workers.rollout.vllm_rollout.vllm_async_server"
VARIABLE = "VERL_RAY_JOB_ID"
"""From which vLLM's processes, started by verl's server, take the id."""


def job() -> str:
    """Ray's job id and the cluster's address, as a part of a file's name."""
    context = ray.get_runtime_context()
    address = re.sub(r"[^0-9A-Za-z]+", "-", context.gcs_address).strip("-")
    return f"{context.get_job_id()}-{address}"


def register() -> None:
    """Name both ends so; in the processes of the trainer's ranks, and in those that have verl's server."""
    from verl.workers.rollout import base

    base._ROLLOUT_REGISTRY[("vllm", "async")] = CLIENT
    if SERVER in sys.modules:  # its import takes seconds in processes that need none
        name_receiver()


@functools.cache
def name_receiver() -> None:
    """Have the server tell it to vLLM's processes, which inherit its variables."""
    from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer

    original = vLLMHttpServer._post_init

    @functools.wraps(original)
    def post_init(self: Any, *args: Any, **kwargs: Any) -> None:
        os.environ[VARIABLE] = job()
        original(self, *args, **kwargs)

    vLLMHttpServer._post_init = post_init
