"""Early stop and the best checkpoint; the trainer's side of it is in test_illnesses.py."""

from __future__ import annotations

import math

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipes.config import check, load
from recipes.engines.checkpoints import best_checkpoint
from recipes.errors import RecipeError
from recipes.monitor.early_stop import EarlyStop, check_early_stop, standing
from recipes.runs.metrics import Step

ACCURACY = "val-core/x/acc/mean@1"


def recipe(folder, *arguments):
    keys = (f"trainer.save_checkpoint_path={folder}", *arguments)
    return load("countdown", arguments=keys, environ={"SAVE_FREQ": "2", "VAL_FREQ": "2"}, hardware="cpu")


def save(folder, step):
    actor = folder / f"global_step_{step}" / "actor" / "huggingface"
    actor.mkdir(parents=True)
    (actor / "model.safetensors").write_text(f"weights {step}")
    (folder / "latest_checkpointed_iteration.txt").write_text(str(step))


@given(st.lists(st.floats(0, 1, allow_nan=False), max_size=30), st.floats(0, 0.5))
def test_waiting_counts_the_values_since_the_last_gain(values, min_delta):
    now = standing(enumerate(values), min_delta)
    best, waited, at = -math.inf, 0, 0
    for step, value in enumerate(values):
        best, waited, at = (value, 0, step) if value > best + min_delta else (best, waited + 1, at)
    assert (now.waited, now.step, now.best) == (waited, at, best if values else None)


def test_the_best_is_kept_beyond_the_limit_and_the_run_ends_at_a_saved_step(tmp_path):
    lines, reasons = [], []
    stop = EarlyStop(recipe(tmp_path, "trainer.keep_best=true", "trainer.early_stop.patience=2"), [], lines.append)
    for step, value in ((0, 0.2), (2, 0.5), (4, 0.4), (6, 0.5)):
        if step:
            save(tmp_path, step)
        reasons.append(stop.add_step(Step(step, {ACCURACY: value})))
    assert reasons[:3] == [None] * 3
    assert "not gained for 2 values (best 0.500 at step 2)" in reasons[3]
    (tmp_path / "global_step_2" / "actor" / "huggingface" / "model.safetensors").unlink()
    assert (tmp_path / "best" / "actor" / "huggingface" / "model.safetensors").read_text() == "weights 2"
    assert (best_checkpoint(tmp_path), len(lines)) == ((2, 0.5), 1)

    save(tmp_path, 8)
    stop = EarlyStop(recipe(tmp_path, "trainer.keep_best=true"), [Step(2, {ACCURACY: 0.5})], lines.append)
    assert stop.add_step(Step(8, {ACCURACY: 0.6})) is None
    assert best_checkpoint(tmp_path) == (8, 0.6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trainer.early_stop.patience=2", "trainer.early_stop.metric=val_acc"], "unknown metric 'val_acc'"),
        (["trainer.early_stop.patience=2", "trainer.val_freq=-1"], "never appears: the run does not validate"),
        (["trainer.early_stop.patience=2", "trainer.early_stop.metric=val-core/x/acc/mean@4"], "has 1 response "),
        (["trainer.early_stop.patience=2", "trainer.early_stop.metric=val-core/y/acc/mean@1"], "no data source 'y'"),
        (["trainer.keep_best=true", "trainer.save_freq=-1"], "needs checkpoints"),
    ],
)
def test_what_can_never_act_is_an_error_before_the_start(tmp_path, arguments, message):
    rows = tmp_path / "test.parquet"
    pq.write_table(pa.table({"data_source": ["x"] * 3}), rows)
    loaded = recipe(tmp_path, f"data.val_files={rows}", *arguments)
    with pytest.raises(RecipeError, match=message):  # noqa: PT012
        check(loaded)
        check_early_stop(loaded)
