"""The optimiser's values in a resumed run: the command's, not the checkpoint's; for both engines.

The shape of the schedule is the command's already: `LambdaLR` saves no functions.
"""

from __future__ import annotations

import re
from typing import Any

_STEP = re.compile(r"(?:^|/)global_step_(\d+)(?=/|$)")


def set_again(engine: Any, local_path: str) -> None:
    """Give optimiser and schedule the rate, betas and decay of the configuration, at the step of the checkpoint.

    Args:
        engine: verl's, with `optimizer`, `lr_scheduler`, `optimizer_config` and `checkpoint_manager`.
        local_path: of the checkpoint, below a folder `global_step_<n>`.
    """
    config, optimizer, schedule = engine.optimizer_config, engine.optimizer, engine.lr_scheduler
    steps = _STEP.findall(local_path)
    if steps and not engine.checkpoint_manager.should_load_extra:
        schedule.last_epoch = int(steps[-1])  # it was not saved; verl moves it on once a step
    schedule.base_lrs = [config.lr for _ in schedule.base_lrs]
    rates = [config.lr * shape(schedule.last_epoch) for shape in schedule.lr_lambdas]
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["initial_lr"] = config.lr
        group["lr"] = group["lr"].fill_(rate) if hasattr(group["lr"], "fill_") else rate
        group["weight_decay"] = config.weight_decay
        if "betas" in group:
            group["betas"] = tuple(config.betas)
    schedule._last_lr = rates
    if engine.rank == 0:
        print(f"going on with learning rate {rates[0]:g}, weight decay {config.weight_decay:g}", flush=True)
