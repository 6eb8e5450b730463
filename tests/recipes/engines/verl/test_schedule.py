"""The learning rate on a straight line, by verl's own engine code, and verl's cosine left as it is."""

import pytest
import torch
from verl.workers.config.optimizer import FSDPOptimizerConfig

from recipes.config import load
from recipes.engines.verl import translation as verl
from recipes.engines.verl.engine import RecipesEngine


def rates(*arguments: str, total: int = 10) -> list[float]:
    """The learning rates of verl's optimiser for the actor of a recipe, step by step."""
    keys = verl.translate(load("countdown", arguments=arguments, environ={}, hardware="gpu"))
    prefix = "actor_rollout_ref.actor.optim."
    names = ("lr_scheduler_type", "num_cycles", "min_lr_ratio", "lr_warmup_steps", "lr_warmup_steps_ratio")
    given = {name: keys[prefix + name] for name in names if prefix + name in keys}
    engine = object.__new__(RecipesEngine)
    engine.rank, engine.optimizer_config = 1, FSDPOptimizerConfig(lr=1.0, total_training_steps=total, **given)
    optimiser = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    schedule = engine._build_lr_scheduler(optimiser)
    found = []
    for _ in range(total + 1):
        found.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        schedule.step()
    return found


def test_a_line_rises_falls_and_ends_where_it_is_told_to():
    line = rates("--lr_scheduler_type", "linear", "--lr_warmup_steps", "2")
    assert line == pytest.approx([0, 0.5, 1, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125, 0])
    least = "actor_rollout_ref.actor.optim.min_lr_ratio=0.1"
    line = rates("--lr_scheduler_type", "linear", least, "--lr_warmup_ratio", "0.1")
    assert (line[0], line[1], line[-1]) == pytest.approx((0, 1, 0.1))
    cosine = rates("--lr_scheduler_type", "cosine")
    assert (cosine[0], cosine[5], cosine[-1]) == pytest.approx((1, 0.5, 0)), "verl's own"
