"""Values as they act: what null stands for, and keys that mean nothing beside others, so that two sides compare."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recipes.config import yaml_io
from recipes.config.layers import flatten
from recipes.config.resolve import find, shown_path
from recipes.config.schema import Recipe, leaves

LAUNCHERS_OWN = ("name", "engine", "hardware", "prepare", "verl")
"""Keys that speak to the launcher, and verl's own, which have rows of their own."""
VALIDATION = "worker.rollout.val_override_config"
LORA = "worker.actor.model.lora"
DETAILS = {
    f"{LORA}.rank": (f"{LORA}.alpha", f"{LORA}.target_modules", f"{LORA}.exclude_modules"),
    "worker.rollout.limit_images": ("data.min_pixels", "data.max_pixels"),
    "worker.actor.dynamic_batching": ("worker.actor.max_token_len_per_device",),
    "algorithm.online_filtering": ("algorithm.filter_low", "algorithm.filter_high", "algorithm.filter_key"),
}
"""Switch -> keys that mean nothing in our recipe while it is off."""
OVERRIDES = ("temperature", "top_p", "top_k")


def ours(recipe: Recipe, task_or_path: str) -> dict[str, Any]:
    """Our recipe's keys and values; paths as its file writes them."""
    path = find(task_or_path)
    written = flatten(yaml_io.read(path, shown_path(path)))
    values: dict[str, Any] = {}
    for key, leaf in leaves(Recipe).items():
        if key in LAUNCHERS_OWN or (key.startswith("worker.critic.") and recipe.algorithm.adv_estimator != "gae"):
            continue
        if leaf.info.path is not None:
            values[key] = written.get(key)
        else:
            values[key] = recipe.value(key)
    values.update({f"verl.{name}": value for name, value in flatten(recipe.verl).items()})
    if values["data.prompt_key"] is None:
        values["data.prompt_key"] = "problem" if recipe.engine == "easyr1" else "prompt"
    return values


def canonical(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same settings with nulls that mean another key filled in, and without keys that have no effect."""
    result = dict(values)
    _kl(result)
    for name in OVERRIDES:
        if result.get(f"{VALIDATION}.{name}") is None and f"worker.rollout.{name}" in result:
            result[f"{VALIDATION}.{name}"] = result[f"worker.rollout.{name}"]
    result.setdefault(f"{VALIDATION}.n", 1)
    if result.get("worker.rollout.load_format") == "auto":
        needs_weights = result.get(f"{LORA}.rank") or result.get("worker.rollout.limit_images")
        result["worker.rollout.load_format"] = "safetensors" if needs_weights else "dummy"
    return result


def idle(mine: Mapping[str, Any]) -> frozenset[str]:
    """Keys that say how to do what our recipe does not do at all; they compare to nothing."""
    return frozenset(key for switch, keys in DETAILS.items() if not mine.get(switch) for key in keys)


def _kl(values: dict[str, Any]) -> None:
    """`use_kl_in_reward` is left out where it follows from `use_kl_loss`; the loss's own weight becomes the weight."""
    in_loss = bool(values.get("algorithm.use_kl_loss"))
    follows = not in_loss and not values.get("algorithm.disable_kl")
    in_reward = values.pop("algorithm.use_kl_in_reward", None)
    if in_reward is not None and in_reward != follows:
        values["algorithm.use_kl_in_reward"] = in_reward
    coefficient, estimator = values.pop("algorithm.kl_loss_coef", None), values.pop("algorithm.kl_loss_type", None)
    if in_loss and not in_reward:
        values["algorithm.kl_coef"] = values.get("algorithm.kl_coef") if coefficient is None else coefficient
        values["algorithm.kl_penalty"] = estimator or values.get("algorithm.kl_penalty")
