"""Early stop and the best checkpoint, without and with the launcher."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipes.config import check, load
from recipes.engines.checkpoints import STOP_REQUEST
from recipes.errors import RecipeError
from recipes.monitor.early_stop import EarlyStop, best_checkpoint, check_early_stop, standing
from recipes.monitor.metrics import Step

ACCURACY = "val-core/x/acc/mean@1"


def recipe(folder, *arguments):
    keys = (f"trainer.save_checkpoint_path={folder}", *arguments)
    return load("countdown", arguments=keys, environ={"SAVE_FREQ": "2", "VAL_FREQ": "2"}, hardware="cpu")


def save(folder, step):
    actor = folder / f"global_step_{step}" / "actor" / "huggingface"
    actor.mkdir(parents=True)
    (actor / "model.safetensors").write_text(f"weights {step}")
    (folder / "latest_checkpointed_iteration.txt").write_text(str(step))


def drop(folder, step):
    (folder / f"global_step_{step}" / "actor" / "huggingface" / "model.safetensors").unlink()


@given(st.lists(st.floats(0, 1, allow_nan=False), max_size=30), st.floats(0, 0.5))
def test_waiting_counts_the_values_since_the_last_gain(values, min_delta):
    now = standing([Step(step, {ACCURACY: value}) for step, value in enumerate(values)], "validation", min_delta)
    best, waited, at = -math.inf, 0, 0
    for step, value in enumerate(values):
        best, waited, at = (value, 0, step) if value > best + min_delta else (best, waited + 1, at)
    assert (now.waited, now.step) == (waited, at)
    assert now.best == (best if values else None)


def test_the_best_is_kept_beyond_the_limit_and_the_run_ends_at_a_saved_step(tmp_path):
    lines = []
    stop = EarlyStop(recipe(tmp_path, "trainer.keep_best=true", "trainer.early_stop.patience=2"), [], lines.append)
    reasons = []
    for step, value in ((0, 0.2), (2, 0.5), (4, 0.4), (6, 0.5)):
        if step:
            save(tmp_path, step)
        reasons.append(stop.saw(Step(step, {ACCURACY: value})))
    assert reasons[:3] == [None] * 3
    assert "not gained for 2 values (best 0.500 at step 2)" in reasons[3]
    drop(tmp_path, 2)
    assert (tmp_path / "best" / "actor" / "huggingface" / "model.safetensors").read_text() == "weights 2"
    assert best_checkpoint(tmp_path) == (2, 0.5)
    assert len(lines) == 1

    save(tmp_path, 8)
    history = [Step(2, {ACCURACY: 0.5})]
    stop = EarlyStop(recipe(tmp_path, "trainer.keep_best=true"), history, lines.append)
    assert stop.saw(Step(8, {ACCURACY: 0.6})) is None
    assert best_checkpoint(tmp_path) == (8, 0.6)
    assert not list(tmp_path.glob("best.*"))


def test_a_step_without_a_checkpoint_asks_the_trainer_to_save_first_and_a_gain_takes_that_back(tmp_path):
    stop = EarlyStop(recipe(tmp_path, "trainer.early_stop.patience=1"), [Step(0, {ACCURACY: 0.5})], lambda line: None)
    assert stop.saw(Step(1, {"critic/score/mean": 1.0})) is None
    assert not (tmp_path / STOP_REQUEST).exists()
    assert stop.saw(Step(2, {ACCURACY: math.nan})) is None
    assert (tmp_path / STOP_REQUEST).exists()
    assert stop.saw(Step(4, {ACCURACY: 0.7})) is None
    assert not (tmp_path / STOP_REQUEST).exists()


def test_the_callback_ends_verls_own_loop_after_the_save_and_takes_the_request_back(tmp_path, monkeypatch):
    """verl's `PPOTrainer.fit` as it is; what it calls to generate, update and log is left out."""
    from types import SimpleNamespace
    from unittest.mock import MagicMock

    from omegaconf import OmegaConf
    from verl.trainer.ppo.v1 import trainer_base
    from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

    from recipes.engines.checkpoint_callbacks import ExactModels

    keys = {"total_epochs": 9, "save_freq": 2, "test_freq": 3, "val_before_train": False}
    keys |= {"project_name": "p", "experiment_name": "e", "logger": []}
    config = {"trainer": keys, "global_profiler": {"steps": None}}
    for name in ("SkipManager", "Tracking", "ValidationGenerationsLogger", "DapoFilteredRewardTableLogger", "tq"):
        monkeypatch.setattr(trainer_base, name, MagicMock())
    trainer = object.__new__(PPOTrainerSync)
    trainer.config, trainer.global_steps, trainer.steps_per_epoch = OmegaConf.create(config), 0, 5
    trainer.total_training_steps = 9
    done, callback = [], ExactModels()

    def save_checkpoint():
        save(tmp_path, trainer.global_steps)
        drop(tmp_path, trainer.global_steps)
        callback.on_save(trainer, trainer.global_steps, str(tmp_path / f"global_step_{trainer.global_steps}"))

    def step(metrics, timing):
        done.append(trainer.global_steps)
        if trainer.global_steps == 3:
            (tmp_path / STOP_REQUEST).touch()
        return SimpleNamespace(keys=[], partition_id="train")

    trainer.step, trainer._save_checkpoint, trainer.checkpoint_manager = step, save_checkpoint, MagicMock()
    for name in ("_start_profiling", "_stop_profiling", "_validate", "_compute_metrics", "_shutdown_dump_executor"):
        setattr(trainer, name, MagicMock(return_value={"val-core/x/acc/mean@1": 0.5}))
    trainer._reissue_inflight_prompts = MagicMock()
    trainer.fit(MagicMock())
    assert done == [1, 2, 3, 4]
    assert (tmp_path / "latest_checkpointed_iteration.txt").read_text() == "4"
    assert not (tmp_path / STOP_REQUEST).exists()
    assert trainer.logger.log.call_args.kwargs["step"] == 4, "the last step is logged"
    assert trainer._shutdown_dump_executor.called


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["trainer.early_stop.patience=0"], "greater than 0"),
        (["trainer.early_stop.patience=2", "trainer.early_stop.metric=val_acc"], "unknown metric 'val_acc'"),
        (["trainer.early_stop.patience=2", "trainer.early_stop.metric=actor/entropy"], "unknown metric"),
        (["trainer.early_stop.patience=2", "trainer.val_freq=-1"], "never appears: the run does not validate"),
        (["trainer.early_stop.patience=2", "trainer.early_stop.metric=val-core/x/acc/mean@4"], "has 1 response "),
        (["trainer.keep_best=true", "trainer.save_freq=-1"], "needs checkpoints"),
        (["trainer.early_stop.patience=2", "monitor.window=1"], "greater than or equal to 2"),
    ],
)
def test_what_can_never_act_is_an_error_before_the_start(tmp_path, arguments, says):
    with pytest.raises(RecipeError) as error:
        check(recipe(tmp_path, *arguments))
    assert says in str(error.value)
    assert error.value.fix


def test_a_data_source_that_the_validation_does_not_have(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = tmp_path / "test.parquet"
    pq.write_table(pa.table({"data_source": ["countdown"] * 3}), rows)
    keys = ("trainer.early_stop.patience=2", f"data.val_files={rows}")
    with pytest.raises(RecipeError, match="no data source 'contdown'") as error:
        check_early_stop(recipe(tmp_path, *keys, "trainer.early_stop.metric=val-core/contdown/acc/mean@1"))
    assert "countdown" in error.value.fix
    assert check_early_stop(recipe(tmp_path, *keys, "trainer.early_stop.metric=val-core/countdown/acc/mean@1")) == []


def test_the_facts_of_a_torn_best_are_not_trusted(tmp_path):
    (tmp_path / "best").mkdir()
    (tmp_path / "best" / "best.json").write_text(json.dumps({"step": 3})[:6])
    assert best_checkpoint(tmp_path) is None
