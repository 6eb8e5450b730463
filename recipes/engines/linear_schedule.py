"""A learning rate that falls along a straight line after the warm-up.

verl 0.9.1 knows constant and cosine only: verl/workers/engine/fsdp/transformer_impl.py:503 (`def _build_lr_scheduler`)
takes the latter from `verl.utils.torch_functional` when it is called, and the optimiser's configuration refuses others.
A line travels as a cosine of `LINEAR_CYCLES` cycles, which would be constant and so is asked for by nobody.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from recipes.engines.verl import LINEAR_CYCLES

Schedule = Callable[..., LambdaLR]


def with_linear(cosine: Schedule) -> Schedule:
    """verl's cosine schedule, which with `LINEAR_CYCLES` falls from 1 at the end of the warm-up to `min_lr_ratio`."""

    @functools.wraps(cosine)
    def schedule(
        optimizer: Optimizer,
        num_warmup_steps: int,
        num_training_steps: int,
        min_lr_ratio: float | None = 0.0,
        num_cycles: float = 0.5,
        **others: Any,
    ) -> LambdaLR:
        least = min_lr_ratio or 0.0
        if num_cycles != LINEAR_CYCLES:
            return cosine(optimizer, num_warmup_steps, num_training_steps, least, num_cycles, **others)
        return LambdaLR(optimizer, lambda step: share(step, num_warmup_steps, num_training_steps, least))

    return schedule


def share(step: int, warmup: int, total: int, least: float) -> float:
    """The part of the learning rate that update `step`, counted from 0, has; it rises as verl's other schedules do."""
    if step < warmup:
        return step / warmup
    done = min(1.0, (step - warmup) / max(1, total - warmup))
    return 1.0 - (1.0 - least) * done


@functools.cache
def register() -> None:
    """Put the schedule where verl takes its cosine from."""
    from verl.utils import torch_functional

    torch_functional.get_cosine_schedule_with_warmup = with_linear(torch_functional.get_cosine_schedule_with_warmup)
