"""verl's configuration as its trainer would compose it for a recipe, and a process group of this process alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from omegaconf import DictConfig


def _compose(overrides: list[str]) -> DictConfig:
    """verl's configuration with these arguments of its command line."""
    from hydra import compose, initialize_config_dir

    from recipes.config.names import verl_package

    folder = verl_package() / "trainer" / "config"
    with initialize_config_dir(config_dir=str(folder), version_base=None):
        return compose("ppo_trainer", overrides=overrides)


@cache
def _composed(task: str, hardware: str, algorithm: str, *arguments: str) -> DictConfig:
    from recipes.config import load
    from recipes.engines.verl import translation as verl

    environ = {"ALGORITHM": algorithm} if algorithm else {}
    return _compose(verl.overrides(load(task, arguments=arguments, environ=environ, hardware=hardware)))


@pytest.fixture(scope="session")
def compose_with() -> Callable[[list[str]], DictConfig]:
    """`compose_with(overrides)`: what verl composes from a command line."""
    return _compose


@pytest.fixture(scope="session")
def composed() -> Callable[..., DictConfig]:
    """`composed(*arguments, task="countdown", hardware="gpu", algorithm="")`: a recipe in verl's keys."""

    def compose_for(*arguments: str, task: str = "countdown", hardware: str = "gpu", algorithm: str = "") -> DictConfig:
        return _composed(task, hardware, algorithm, *arguments)

    return compose_for


@pytest.fixture
def one_rank(tmp_path: Path) -> Iterator[None]:
    """torch.distributed on CPUs, with this process as its only rank."""
    import torch

    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()
