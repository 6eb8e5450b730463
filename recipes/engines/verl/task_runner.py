"""verl's task runner, which `run_ppo` takes as an argument."""

from __future__ import annotations

from typing import Any

from verl.trainer.main_ppo import TaskRunnerV1

from recipes.engines.verl import upstream


class TaskRunner(TaskRunnerV1.__ray_metadata__.modified_class):  # verl decorates the class for Ray
    """verl's task runner, with the changes of the driver made before it runs."""

    def run(self, config: Any) -> Any:
        upstream.apply("driver")
        return super().run(config)
