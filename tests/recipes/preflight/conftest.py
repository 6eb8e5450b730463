"""A small recipe whose files all exist, for one thing after another to be broken."""

from collections.abc import Callable
from pathlib import Path

import pytest

from recipes.config import Recipe, load
from recipes.data.rows import make_row, write_split
from recipes.paths import ROOT

TRUTH = '{"target": 24, "numbers": [3, 8]}'
REWARD = ROOT / "reward_functions" / "countdown.py"


def write_rows(path, count=16, prompt="Use the numbers 3, 8.", source="countdown", truth=TRUTH, **extra) -> None:
    """A split; `prompt`, and each of `extra`, may be a function of the row's number."""

    def row(index):
        facts = {"split": "train", "index": index, "solution": "<think>3 * 8</think>\n<answer>3 * 8</answer>"}
        facts |= {name: of(index) for name, of in extra.items()}
        text = prompt if isinstance(prompt, str) else prompt(index)
        return make_row(data_source=source, prompt=text, ground_truth=truth, ability="math", extra_info=facts)

    write_split(path, map(row, range(count)))


@pytest.fixture
def files(tmp_path, monkeypatch) -> Path:
    """A folder with train.parquet, test.parquet and model/; artifacts go there too."""
    monkeypatch.setenv("ARTIFACTS_DIR", str(tmp_path / "artifacts"))
    write_rows(tmp_path / "train.parquet")
    write_rows(tmp_path / "test.parquet", 4)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"architectures": ["Qwen3ForCausalLM"], "dtype": "float32"}')
    (tmp_path / "model" / "model.safetensors").write_bytes(bytes(4096))
    (tmp_path / "model" / "tokenizer_config.json").write_text("{}")
    return tmp_path


@pytest.fixture
def make(files) -> Callable[..., Recipe]:
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
        return load("countdown", arguments=arguments, environ={"TINY": "1"}, hardware=hardware)

    return build
