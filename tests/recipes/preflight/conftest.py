"""A small recipe whose files all exist, for one thing after another to be broken."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recipes.config import Recipe, load
from recipes.data.rows import make_row, write_split
from recipes.paths import ROOT

REWARD = ROOT / "reward_functions" / "countdown.py"
Make = Callable[..., Recipe]


def write_rows(
    path: Path,
    count: int = 16,
    prompt: str | Callable[[int], str] = "Use the numbers 3, 8.",
    source: str = "countdown",
    truth: str = '{"target": 24, "numbers": [3, 8]}',
    **extra: Callable[[int], Any],
) -> None:
    rows = (
        make_row(
            data_source=source,
            prompt=prompt if isinstance(prompt, str) else prompt(index),
            ground_truth=truth,
            ability="math",
            extra_info={
                "split": "train",
                "index": index,
                "solution": "3 * 8",
                **{name: of(index) for name, of in extra.items()},
            },
        )
        for index in range(count)
    )
    write_split(path, rows)


def write_model(folder: Path, **config: Any) -> None:
    folder.mkdir(parents=True)
    content = {"architectures": ["Qwen3ForCausalLM"], "dtype": "float32", **config}
    (folder / "config.json").write_text(json.dumps(content))
    (folder / "model.safetensors").write_bytes(bytes(4096))
    (folder / "tokenizer_config.json").write_text("{}")


@pytest.fixture
def files(tmp_path, monkeypatch) -> Path:
    """A folder with train.parquet, test.parquet and model/; artifacts go there too."""
    monkeypatch.setenv("ARTIFACTS_DIR", str(tmp_path / "artifacts"))
    write_rows(tmp_path / "train.parquet")
    write_rows(tmp_path / "test.parquet", 4)
    write_model(tmp_path / "model")
    return tmp_path


@pytest.fixture
def make(files) -> Make:
    """Builds the recipe, with changed keys."""

    def build(*changes: str, hardware: str = "cpu") -> Recipe:
        keys = {
            "data.train_files": f"{files}/train.parquet",
            "data.val_files": f"{files}/test.parquet",
            "worker.actor.model.model_path": f"{files}/model",
            "worker.reward.reward_function": str(REWARD),
            "trainer.max_steps": "4",
            "trainer.save_freq": "2",
            **dict(change.split("=", 1) for change in changes),
        }
        arguments = [f"{key}={value}" for key, value in keys.items()]
        return load("countdown", arguments=arguments, environ={"EMBEDDED": "1"}, hardware=hardware)

    return build
