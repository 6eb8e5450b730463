"""The critic of PPO is laid out as the actor is: what no layer says of it follows the actor's key of that name."""

from __future__ import annotations

from typing import Any

from recipes.config.layers import Source
from recipes.config.schema import Recipe, leaves

ACTOR, CRITIC = "worker.actor.", "worker.critic."
OF_ITS_OWN = ("optim.", "model.lora.", "model.model_path", "loss_avg_mode")
"""What a value network has for itself; its `model_path` is the actor's where none is given."""


def follow(values: dict[str, Any], sources: dict[str, Source]) -> None:
    """Fill in, with GAE, the keys of the critic that no layer set: batch sizes, sharding, precision, offloading."""
    if values.get("algorithm.adv_estimator") != "gae":
        return
    for path in leaves(Recipe):
        name = path.removeprefix(CRITIC)
        leader = f"{ACTOR}{name}"
        if name == path or name.startswith(OF_ITS_OWN) or path in sources or leader not in sources:
            continue
        values[path] = values[leader]
        sources[path] = Source("default", f"follows {leader}, from {sources[leader]}", sources[leader].follows)
