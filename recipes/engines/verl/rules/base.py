"""Rules: keys of the recipe that decide together which of verl's keys are set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from recipes.config.schema import Recipe

ACTOR, REF, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.ref", "actor_rollout_ref.rollout"

Rule = Callable[[Recipe], dict[str, Any]]
RULES: list[tuple[tuple[str, ...], Rule]] = []


def rule(*keys: str) -> Callable[[Rule], Rule]:
    """Register a rule with the keys that it translates; a trailing `*` stands for a whole group."""

    def register(function: Rule) -> Rule:
        RULES.append((keys, function))
        return function

    return register


def uses_critic(recipe: Recipe) -> bool:
    """Whether there is a value network."""
    return recipe.algorithm.adv_estimator == "gae"
