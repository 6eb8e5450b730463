"""verl's PPO entry point with its task runner in this process, instead of in one more Ray actor.

`run_ppo` takes the class of the task runner as an argument ("for recipe to change TaskRunner").
"""

from __future__ import annotations

from typing import Any

import hydra
import ray
from verl.trainer.constants_ppo import get_ppo_ray_runtime_env
from verl.trainer.main_ppo import TaskRunnerV1, run_ppo
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils.config import validate_config


class _LocalMethod:
    """`method.remote(...)`, done here and now."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def remote(self, *args: Any) -> ray.ObjectRef:
        return ray.put(self._function(*args))


class LocalTaskRunner:
    """`TaskRunnerV1` behind the two calls that `run_ppo` makes of an actor's class."""

    def __init__(self) -> None:
        runner = TaskRunnerV1.__ray_metadata__.modified_class()
        self.run = _LocalMethod(runner.run)

    @classmethod
    def remote(cls) -> LocalTaskRunner:
        return cls()


def run(address: str | None) -> None:
    """Train as the command line says, on the Ray cluster at `address`, or on a new one."""

    @hydra.main(config_path="pkg://verl.trainer.config", config_name="ppo_trainer", version_base=None)
    def main(config: Any) -> None:
        validate_config(
            config=config,
            use_reference_policy=need_reference_policy(config),
            use_critic=need_critic(config),
        )
        if address is not None:
            ray.init(address=address, runtime_env=get_ppo_ray_runtime_env(config))
        run_ppo(config, task_runner_class=LocalTaskRunner)

    main()
