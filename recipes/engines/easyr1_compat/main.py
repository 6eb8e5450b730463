"""`python -m recipes.engines.easyr1_compat.main key=value ...`: EasyR1's own entry point, read through `imports.py`.

Where there is no GPU, its driver, its Ray actors and vLLM are forked from one process that has imported everything, as
verl's are (`recipes/engines/verl_cpu/main.py`).
"""

from __future__ import annotations

import os
import sys
from functools import partial
from typing import NoReturn

from recipes.engines.easyr1_compat import imports
from recipes.engines.verl_cpu import forkserver, patches, ray_head
from recipes.engines.verl_cpu.main import AFTER_RAY, BEFORE_RAY, FIRST_JOB, can_fork

IMPORTED = (
    *(name for name in AFTER_RAY if not name.startswith(("verl.", "recipes.engines.verl_cpu", "hydra"))),
    "vllm",
    "verl.trainer.main",
    "verl.workers.actor.dp_actor",
)
"""What the driver and Ray's workers import."""


def main() -> int:
    """Run EasyR1's trainer with the arguments of the command line, or one of Ray's workers; the exit status."""
    if os.environ.get(imports.ON_CPU) != "1" or not can_fork({}):
        imports.install()
        return train(None)
    server, cluster = forkserver.ForkServer(), imports.cluster()
    starting = ray_head.launch(cluster)
    forkserver.preload(BEFORE_RAY)
    node = ray_head.connect(starting, cluster)
    os.environ.update(RAY_JOB_ID=FIRST_JOB, RAY_RAYLET_PID=str(node.raylet_pid))  # before Ray is imported
    patches.apply_to_ray()
    imports.install()
    forkserver.preload(IMPORTED)
    owner = os.getpid()
    job = server.serve(partial(train, node.address))
    if os.getpid() != owner:
        return job()
    node.stop()
    return _end(job())


def train(address: str | None) -> int:
    """Train; a Ray cluster may run at `address` already."""
    import ray
    from verl.trainer.main import main as run

    imports.CLUSTER_ADDRESS = address
    run()
    ray.shutdown()
    return 0 if address is None else _end(0)


def _end(status: int) -> NoReturn:
    """End this process, whose work is done, without taking apart what the imports built, which takes a second."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    sys.exit(main())
