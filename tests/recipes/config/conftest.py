"""A small recipe on disk, and what it resolves to."""

from collections.abc import Callable
from pathlib import Path

import pytest

from recipes.config import Recipe, load

SMALL = """
data:
  train_files: artifacts/data/toy/train.parquet
  val_files: artifacts/data/toy/test.parquet
  rollout_batch_size: 64
algorithm:
  kl_coef: 0.01
worker:
  actor:
    global_batch_size: 64
    model: {model_path: org/model}
  rollout: {n: 16, tensor_parallel_size: 1}
  reward: {reward_function: reward_functions/countdown.py}
trainer:
  n_gpus_per_node: 8
tiny:
  data: {rollout_batch_size: 8}
  worker:
    actor: {global_batch_size: 8}
"""


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    """Write a recipe's YAML and give its path."""

    def write_text(text: str, name: str = "toy.yaml") -> Path:
        (tmp_path / name).write_text(text, encoding="utf-8")
        return tmp_path / name

    return write_text


@pytest.fixture
def resolve(write: Callable[[str], Path]) -> Callable[..., Recipe]:
    """Resolve the small recipe with variables and arguments, for GPUs unless said otherwise."""
    path = write(SMALL)

    def resolved(*arguments: str, hardware: str = "gpu", **environ: str) -> Recipe:
        return load(str(path), arguments=arguments, environ=environ, hardware=hardware)

    return resolved
