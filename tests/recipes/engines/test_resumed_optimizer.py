"""After a load the optimiser has the command's values, at the place in the schedule where the checkpoint was."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR

from recipes.engines.resumed_optimizer import set_again


def trained(lr: float, steps: int):
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([weight], lr=lr, betas=(0.9, 0.999), weight_decay=0.01)
    schedule = LambdaLR(optimizer, lambda step: 1 - step / 10)
    for _ in range(steps):
        weight.sum().backward()
        optimizer.step()
        schedule.step()
    return optimizer, schedule


@pytest.mark.parametrize("with_schedule", [True, False])
def test_the_commands_values_hold_after_a_load(with_schedule):
    saved, saved_schedule = trained(1e-3, 4)
    optimizer, schedule = trained(5e-3, 0)
    optimizer.load_state_dict(saved.state_dict())
    if with_schedule:
        schedule.load_state_dict(saved_schedule.state_dict())
    config = SimpleNamespace(lr=5e-3, betas=[0.8, 0.9], weight_decay=0.2)
    manager = SimpleNamespace(should_load_extra=with_schedule)
    engine = SimpleNamespace(
        optimizer=optimizer, lr_scheduler=schedule, optimizer_config=config, checkpoint_manager=manager, rank=0
    )
    set_again(engine, "/somewhere/from_global_step_9/global_step_4/actor")
    (group,) = optimizer.param_groups
    assert group["lr"] == pytest.approx(5e-3 * 0.6)
    assert (group["betas"], group["weight_decay"]) == ((0.8, 0.9), 0.2)
    assert optimizer.state[group["params"][0]]["step"] == 4
    schedule.step()
    assert schedule.get_last_lr() == [pytest.approx(5e-3 * 0.5)]
