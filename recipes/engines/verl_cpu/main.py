"""`python -m recipes.engines.verl_cpu.main key=value ...`: verl's PPO entry point, for a machine without a GPU.

verl's own `verl.trainer.main_ppo` would do the same with the same keys, more slowly. Here Ray's own processes start
while Python imports (`ray_head.py`); the imports happen once, in a process from which all others are forked
(`forkserver.py`); and verl's task runner runs in the driver instead of in one more Ray actor.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from types import SimpleNamespace
from typing import Any, NoReturn

import yaml

from recipes.engines import support
from recipes.engines.verl_cpu import forkserver, patches, ray_head
from recipes.errors import reported_errors

SWITCH = "RECIPES_FORK_WORKERS"
"""Variable; 0 starts every process anew, which is slower and easier to look into."""
RAY_INIT = "ray_kwargs.ray_init."
FIRST_JOB = "01000000"
"""The id that a new Ray cluster gives its first driver."""
BEFORE_RAY = ("torch", "numpy", "pandas", "pyarrow.parquet", "transformers")
AFTER_RAY = (
    "ray._private.workers.setup_worker",
    "hydra",
    "verl.trainer.main_ppo",
    "verl.trainer.ppo.v1",
    "recipes.engines.verl_cpu.engine",
    "recipes.engines.verl_cpu.rollout",
    "vllm.v1.engine.core",
    "vllm.v1.worker.cpu_worker",
)
"""What the driver, Ray's workers and the vLLM server import."""


def main() -> int:
    """Run the trainer, or, in a process forked for it, one of Ray's workers; the exit status."""
    with reported_errors():
        support.check("cpu")
    ray_init = ray_arguments(sys.argv[1:])
    if not can_fork(ray_init):
        return train(None)
    server = forkserver.ForkServer()
    starting = ray_head.launch(ray_init)
    forkserver.preload(BEFORE_RAY)
    node = ray_head.connect(starting, ray_init)
    os.environ.update(RAY_JOB_ID=FIRST_JOB, RAY_RAYLET_PID=str(node.raylet_pid))  # before Ray is imported
    patches.apply_to_ray()
    forkserver.preload(AFTER_RAY)
    owner = os.getpid()
    job = server.serve(partial(train, node.address))
    if os.getpid() != owner:
        return job()
    node.stop()
    return _end(job())


def can_fork(ray_init: dict[str, Any]) -> bool:
    """False where the fork server must not or cannot be used; then everything is started as verl and Ray do it."""
    return (
        os.environ.get(SWITCH, "1") != "0"
        and sys.platform.startswith("linux")
        and "address" not in ray_init
        and not os.environ.get("RAY_ADDRESS")
        and support.installed("ray") == support.TESTED_RAY
    )


def ray_arguments(overrides: list[str]) -> dict[str, Any]:
    """The plain values that the command line gives `ray_kwargs.ray_init`."""
    given = (override.lstrip("+").partition("=") for override in overrides)
    return {key.removeprefix(RAY_INIT): yaml.safe_load(value) for key, _, value in given if key.startswith(RAY_INIT)}


def train(address: str | None) -> int:
    """Compose verl's configuration from the command line and train; a Ray cluster may run at `address` already."""
    import hydra
    import ray
    from verl.trainer.constants_ppo import get_ppo_ray_runtime_env
    from verl.trainer.main_ppo import run_ppo
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    @hydra.main(config_path="pkg://verl.trainer.config", config_name="ppo_trainer", version_base=None)
    def run(config: Any) -> None:
        validate_config(
            config=config,
            use_reference_policy=need_reference_policy(config),
            use_critic=need_critic(config),
        )
        if address is not None:
            ray.init(address=address, runtime_env=get_ppo_ray_runtime_env(config))
        run_ppo(config, task_runner_class=LocalTaskRunner)

    run()
    ray.shutdown()
    return _end(0)


class LocalTaskRunner:
    """verl's task runner in this process, behind the two calls that `run_ppo` makes of a Ray actor's class:
    `remote()` makes an instance, and `run.remote(config)` runs it.

    `run_ppo` takes the class as an argument ("for recipe to change TaskRunner").
    """

    @classmethod
    def remote(cls) -> LocalTaskRunner:
        return cls()

    @property
    def run(self) -> Any:
        import ray
        from verl.trainer.main_ppo import TaskRunnerV1

        runner = TaskRunnerV1.__ray_metadata__.modified_class()
        return SimpleNamespace(remote=lambda config: ray.put(runner.run(config)))


def _end(status: int) -> NoReturn:
    """End this process, whose work is done, without taking apart what the imports built, which takes a second."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    sys.exit(main())
