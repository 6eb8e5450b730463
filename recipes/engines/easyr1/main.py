"""`python -m recipes.engines.easyr1.main key=value ...`: start EasyR1's trainer.

Without a GPU its driver, its Ray actors and vLLM are forked from one process that has imported everything, as verl's
are (`recipes/engines/start`). On GPUs Ray starts each process.
"""

import os
import sys
from typing import Any

from recipes.engines.easyr1.hooks import RANKS
from recipes.engines.start.main import can_fork, end_now, forked

IMPORTED = (
    "ray._private.workers.setup_worker",
    "vllm",
    "vllm.v1.engine.core",
    "vllm.v1.worker.cpu_worker",
    "verl.trainer.main",
    "verl.workers.actor.dp_actor",
)
"""Modules that the driver and Ray's workers import."""


def main() -> int:
    """Run EasyR1's trainer with the command line's arguments, or one of Ray's workers; return the exit status."""
    sizes = cluster()
    if RANKS not in os.environ or not can_fork(sizes, []):
        return train()
    return forked(train, sizes, IMPORTED, __spec__.name)


def cluster() -> dict[str, Any]:
    """The arguments with which EasyR1 starts a Ray cluster; none where `RAY_ADDRESS` names one.

    On CPUs the cluster has logical GPUs, since EasyR1 schedules its ranks by GPUs only.
    """
    if os.environ.get("RAY_ADDRESS"):
        return {}
    sizes: dict[str, Any] = {"include_dashboard": False}
    if ranks := int(os.environ.get(RANKS, "0")):
        sizes |= {"num_cpus": 8 + 4 * ranks, "num_gpus": ranks, "object_store_memory": 1 << 28}
    return sizes


def train(address: str | None = None) -> int:
    """Train on the Ray cluster at `address`; None: on the cluster that EasyR1 finds or starts."""
    if address is not None:
        os.environ["RAY_ADDRESS"] = address
    import ray
    from verl.trainer.main import main as run

    run()
    ray.shutdown()
    return 0 if address is None else end_now(0)


if __name__ == "__main__":
    sys.exit(main())
