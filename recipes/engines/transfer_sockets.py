"""Names for the sockets between trainer and vLLM that differ between two runs on one machine.

verl puts Ray's job id in these names, to keep runs apart: verl/workers/rollout/vllm_rollout/vllm_rollout.py:140
(`get_job_id()`). vLLM's processes read the id from a variable, which verl's server sets:
verl/workers/rollout/vllm_rollout/vllm_async_server.py:143 (`VERL_RAY_JOB_ID`). But every new cluster gives its first
job the same id, so two runs that each have a cluster would use the same name in /tmp. This module adds the cluster's
address to the id. Two clusters that run at the same time have different addresses.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from typing import Any

import ray

CLIENT = "recipes.engines.vllm_client.WatchfulServerAdapter"
"""The class of clients that use such names. verl imports it by this path when it makes a client."""
SERVER = "verl.workers.rollout.vllm_rollout.vllm_async_server"
VARIABLE = "VERL_RAY_JOB_ID"
"""The variable from which the vLLM processes that verl's server starts read the id."""


def job() -> str:
    """Ray's job id and the cluster's address, as a part of a file's name."""
    context = ray.get_runtime_context()
    address = re.sub(r"[^0-9A-Za-z]+", "-", context.gcs_address).strip("-")
    return f"{context.get_job_id()}-{address}"


def register() -> None:
    """Use these names at both ends: in the processes of the trainer's ranks, and in those that have verl's server."""
    from verl.workers.rollout import base

    base._ROLLOUT_REGISTRY[("vllm", "async")] = CLIENT
    if SERVER in sys.modules:  # not imported here: that takes seconds, and other processes do not need it
        name_receiver()


@functools.cache
def name_receiver() -> None:
    """Patch verl's server so that it sets the variable, which the vLLM processes that it starts inherit."""
    from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer

    original = vLLMHttpServer._post_init

    @functools.wraps(original)
    def post_init(self: Any, *args: Any, **kwargs: Any) -> None:
        os.environ[VARIABLE] = job()
        original(self, *args, **kwargs)

    vLLMHttpServer._post_init = post_init
