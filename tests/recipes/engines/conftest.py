"""verl's configuration as its trainer would compose it, for a recipe under one of the algorithms."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
from omegaconf import DictConfig

from recipes.paths import ROOT


@cache
def _composed(algorithm: str, hardware: str, *arguments: str) -> DictConfig:
    from hydra import compose, initialize_config_dir

    from recipes.config import load
    from recipes.config.names import verl_package
    from recipes.engines import verl

    # A model that is here: to check a critic, verl reads its configuration and tokenizer.
    environ = {"ALGORITHM": algorithm, "MODEL_PATH": str(ROOT / "recipes" / "tasks" / "countdown" / "tiny")}
    # With the pass for old log-probabilities: without it the losses have names of ours.
    arguments = ("worker.actor.recompute_old_log_probs=true", *arguments)
    recipe = load("countdown", arguments=arguments, environ=environ, hardware=hardware)
    folder = verl_package() / "trainer" / "config"
    with initialize_config_dir(config_dir=str(folder), version_base=None):
        return compose("ppo_trainer", overrides=verl.overrides(recipe))


@pytest.fixture(scope="session")
def composed() -> Callable[..., DictConfig]:
    """`composed(algorithm, *arguments, hardware="gpu")`: Countdown's recipe in verl's words."""

    def compose_for(algorithm: str, *arguments: str, hardware: str = "gpu") -> DictConfig:
        return _composed(algorithm, hardware, *arguments)

    return compose_for
