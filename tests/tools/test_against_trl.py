"""The comparison with TRL: both trainers get the same rows, reward, batch and values, and are timed alike."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest

from recipes.config import load
from recipes.data.rows import make_row, write_split
from recipes.errors import RecipeError
from tools.benchmarks import against_trl
from tools.benchmarks.watching import Watched


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("ARTIFACTS_DIR", str(tmp_path))
    monkeypatch.setattr(against_trl, "FOLDER", tmp_path / "against_trl")
    return tmp_path


class Trainer:
    """TRL's, as much as is used: it asks for rewards, and tells the callback of three steps."""

    def __init__(self, **given: Any) -> None:
        Trainer.given = given

    def train(self) -> None:
        (row,) = self.given["train_dataset"]
        columns = {name: [row[name]] * 2 for name in ("data_source", "reward_model")}
        answers = [[{"content": f"<think>{text}</think>\n<answer>{text}</answer>"}] for text in ("3 * 8", "3 + 8")]
        Trainer.rewards = self.given["reward_funcs"](answers, **columns)
        for step in (1, 2, 3):
            self.given["callbacks"][0].on_step_begin()
            self.given["callbacks"][0].on_step_end(None, SimpleNamespace(global_step=step))


def test_both_train_on_the_same_work(folder, monkeypatch):
    recipe, commands = against_trl.workload(), []
    truth = json.dumps({"target": 24, "numbers": [3, 8]})
    row = make_row(
        data_source="countdown",
        prompt="3, 8 -> 24",
        ground_truth=truth,
        ability="math",
        extra_info={"split": "train", "index": 0},
    )
    write_split(Path(recipe.data.train_files), [row])
    read = SimpleNamespace(from_parquet=lambda file, columns: pq.read_table(file, columns=columns).to_pylist())
    for module, names in (
        ("trl", {"GRPOConfig": SimpleNamespace, "GRPOTrainer": Trainer}),
        ("transformers", {"TrainerCallback": object}),
        ("datasets", {"Dataset": read}),
    ):
        monkeypatch.setitem(sys.modules, module, SimpleNamespace(**names))
    against_trl.train_with_trl(3, folder / "metrics")
    assert [json.loads(line)["step"] for line in (folder / "metrics").read_text().splitlines()] == [1, 2, 3]
    right, wrong = Trainer.rewards
    assert right == 1.0 > wrong

    def watch(command: list[str], *, environment: dict[str, str], **_: Any) -> Watched:
        commands.append((command[4:], environment))
        return Watched(exit_code=0, first_metrics_s=20.0, step_s=[5.0, 2.0, 3.0, 9.0])

    monkeypatch.setattr(against_trl, "watch", watch)
    assert against_trl.ours(4) == against_trl.trl(4, folder) == against_trl.Timing(15.0, 20.0, 3.0)
    ours = load("countdown", arguments=commands[0][0], environ={**commands[0][1], "ARTIFACTS_DIR": str(folder)})
    assert (ours.trainer.max_steps, ours.trainer.val_freq, ours.trainer.save_freq) == (4, -1, -1)
    config, rollout, actor = Trainer.given["args"], ours.worker.rollout, ours.worker.actor
    batch = ours.data.rollout_batch_size * rollout.n
    assert (config.per_device_train_batch_size, config.max_completion_length) == (batch, 64) == (64, 64)
    assert config.max_completion_length == ours.data.max_response_length
    assert (config.num_generations, config.temperature) == (rollout.n, rollout.temperature)
    assert (config.beta, True) == (ours.algorithm.kl_loss_coef, ours.algorithm.use_kl_loss)
    assert config.learning_rate == actor.optim.lr
    assert actor.global_batch_size == ours.data.rollout_batch_size, "one update a step"
    assert Trainer.given["model"] == actor.model.model_path
    assert ours.data.train_files == recipe.data.train_files


def test_a_trainer_that_fails_and_a_missing_trl_say_what_to_do(folder, monkeypatch, capsys):
    def watch(command: list[str], *, log: Any, **_: Any) -> Watched:
        log.parent.mkdir()
        log.write_text("torch.OutOfMemoryError\n")
        return Watched(exit_code=1, first_metrics_s=20.0, step_s=[5.0, 2.0])

    monkeypatch.setattr(against_trl, "watch", watch)
    with pytest.raises(RecipeError, match="launcher ended with 1"):
        against_trl.ours(4)
    with pytest.raises(SystemExit):
        against_trl.command(trl_folder=folder)
    said = capsys.readouterr()
    assert "torch.OutOfMemoryError" in said.out
    assert f"pip install --no-deps --target {folder} trl" in said.err
