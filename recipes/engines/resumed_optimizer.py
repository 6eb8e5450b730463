"""Let the command's learning rate, betas and weight decay hold in a resumed run; verl restores the checkpoint's.

verl has no key for this: verl/utils/checkpoint/fsdp_checkpoint_manager.py:237 (`self.optimizer.load_state_dict`)
loads whole state dictionaries. The shape of the schedule is the command's already: `LambdaLR` saves no functions.
"""

from __future__ import annotations

import functools
import re
from typing import Any

_STEP = re.compile(r"global_step_(\d+)")


def register() -> None:
    """Set the optimiser's values after each load; calling this again is harmless."""
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngine

    original = FSDPEngine.load_checkpoint
    if hasattr(original, "sets_again"):
        return

    @functools.wraps(original)
    def load_checkpoint(self: Any, local_path: str, *args: Any, **kwargs: Any) -> Any:
        result = original(self, local_path, *args, **kwargs)
        if self.optimizer is not None and local_path:
            set_again(self, local_path)
        return result

    load_checkpoint.sets_again = True  # type: ignore[attr-defined]  # what is asked above
    FSDPEngine.load_checkpoint = load_checkpoint


def set_again(engine: Any, local_path: str) -> None:
    """Give optimiser and schedule the rate, betas and decay of the configuration, at the step of the checkpoint.

    Args:
        engine: verl's, with `optimizer`, `lr_scheduler`, `optimizer_config` and `checkpoint_manager`.
        local_path: of the checkpoint, with `global_step_<n>` in it.
    """
    config, optimizer, schedule = engine.optimizer_config, engine.optimizer, engine.lr_scheduler
    step = _STEP.search(local_path)
    if step and not engine.checkpoint_manager.should_load_extra:
        schedule.last_epoch = int(step.group(1))  # it was not saved; verl moves it on once a step
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
