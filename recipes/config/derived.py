"""Values that follow from other keys."""

from __future__ import annotations

from typing import Any

from recipes.config.layers import Source
from recipes.config.schema import Recipe, leaves

EXPERIMENT = "{experiment_name}"
"""Stands for the experiment's name in trainer.save_checkpoint_path."""

NO_KL = "algorithm.disable_kl"
MINI, WHOLE = "worker.actor.global_batch_size", "data.rollout_batch_size"
MICRO = {
    "worker.actor.micro_batch_size_per_device_for_update": (MINI, 4),
    "worker.actor.micro_batch_size_per_device_for_experience": (WHOLE, 8),
}
"""Micro-batch -> (the prompts that it divides, the most responses that null stands for)."""


def fill(values: dict[str, Any], sources: dict[str, Source]) -> None:
    """Put values where a recipe's file has null, or a name's place; changes both mappings."""

    def found(key: str) -> Any:
        return values.get(key, leaves(Recipe)[key].default)

    def follow(key: str, value: Any, leaders: str) -> None:
        null = sources[key]
        values[key], sources[key] = value, Source(null.layer, f"{null}, where null follows {leaders}", leaders)

    _without_kl(values, sources)
    if MINI in values and values[MINI] is None:
        follow(MINI, found(WHOLE), WHOLE)
    # verl fills its passes by tokens there, so that nothing has to divide; EasyR1 divides all the same.
    undivided = found("engine") == "verl" and found("worker.actor.dynamic_batching") is True
    for key, (batch, most) in MICRO.items():
        if key in values and values[key] is None:
            numbers = [found(name) for name in (batch, "worker.rollout.n", *_RANKS)]
            share = _share(*numbers) if all(type(number) is int for number in numbers) else 1
            divisor = max(size for size in range(1, most + 1) if share % size == 0)
            follow(key, most if undivided else divisor, batch)
    path = values.get("trainer.save_checkpoint_path")
    if isinstance(path, str):
        name = values.get("trainer.experiment_name") or values["name"]
        values["trainer.save_checkpoint_path"] = path.replace(EXPERIMENT, str(name))


def _without_kl(values: dict[str, Any], sources: dict[str, Source]) -> None:
    """Who asks for no KL in this run means it, wherever a file has it; what else the user asks for, the checks see."""
    if values.get(NO_KL) is not True or not sources[NO_KL].by_user:
        return
    for key, none in (("algorithm.use_kl_loss", False), ("algorithm.use_kl_in_reward", None)):
        if values.get(key) is True and not sources[key].by_user:
            values[key] = none
            sources[key] = Source(sources[NO_KL].layer, f"{sources[NO_KL]}, which wins over {sources[key]}")


_RANKS = ("trainer.nnodes", "trainer.n_gpus_per_node", "worker.actor.ulysses_size")


def _share(prompts: int, n: int, nodes: int, gpus: int, ulysses: int) -> int:
    """Responses of one GPU; 1 where they do not divide, which the checks then explain."""
    ranks = max(1, nodes * gpus // max(1, ulysses))
    return prompts * n // ranks if prompts * n % ranks == 0 else 1


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
