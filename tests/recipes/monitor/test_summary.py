"""The closing table."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from zipfile import ZipFile

import pytest

from recipes.engines.checkpoints import Checkpoint, go_on_from, last_checkpoint, resumable, saved_steps
from recipes.monitor.metrics import Step
from recipes.monitor.summary import accuracy_before_and_after, shown, summary, table


def val(step, accuracy):
    return Step(step, {"val-core/countdown/acc/mean@1": accuracy})


def save(folder: Path, step: int, weights: bool = True, whole: bool = True) -> None:
    model = folder / f"global_step_{step}" / "actor" / "huggingface"
    model.mkdir(parents=True)
    if weights:
        (model / "model.safetensors").write_bytes(b"w")
    if whole:
        (folder / "latest_checkpointed_iteration.txt").write_text(f"{step}\n")


def test_the_last_checkpoint_is_the_last_whole_one(tmp_path):
    assert last_checkpoint(tmp_path) is None
    save(tmp_path, 20)
    save(tmp_path, 40, whole=False)
    found = last_checkpoint(tmp_path)
    assert (found.step, found.model) == (20, tmp_path / "global_step_20" / "actor" / "huggingface")
    assert saved_steps(tmp_path) == [20, 40]


def test_a_checkpoint_without_weights_to_load_has_no_model(tmp_path):
    save(tmp_path, 20, weights=False)
    assert last_checkpoint(tmp_path).model is None


def test_a_tracker_without_its_folder_names_no_checkpoint(tmp_path):
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("5")
    assert last_checkpoint(tmp_path) is None
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("five")
    assert last_checkpoint(tmp_path) is None


def test_a_folder_that_lost_its_weights_to_rotation_does_not_count(tmp_path):
    (tmp_path / "global_step_5").mkdir()
    (tmp_path / "global_step_5" / "data.pt").write_bytes(b"")
    assert saved_steps(tmp_path) == []


def test_accuracy_before_and_after():
    history = [val(0, 0.3), Step(1, {}), val(20, 0.5), val(40, 0.6)]
    assert accuracy_before_and_after(history) == [("countdown", 0.3, 0, 0.6, 40)]


def test_the_table_says_what_was_reached_and_what_to_type():
    checkpoint = Checkpoint(40, Path("c/global_step_40"), Path("c/global_step_40/actor/huggingface"))
    long = "python scripts/eval.py --model_path " + "x" * 300
    rows = summary([val(0, 0.3), val(40, 0.6)], 40, checkpoint, Path("train.log"), [("evaluate", long)])
    assert rows == [
        ("steps", "40 of 40"),
        ("validation accuracy", "countdown: 0.300 (step 0) -> 0.600 (step 40)"),
        ("checkpoint", "c/global_step_40/actor/huggingface"),
        ("log", "train.log"),
        ("evaluate", long),
    ]
    assert f"evaluate             {long}" in table(rows).splitlines(), "a command is not broken into lines"


def test_the_table_of_a_run_without_validation_or_checkpoint():
    rows = dict(summary([Step(1, {})], None, None, Path("train.log"), []))
    assert rows == {"steps": "1", "checkpoint": "none was saved", "log": "train.log"}


def test_a_single_validation_is_not_compared_with_itself():
    rows = dict(summary([val(0, 0.3)], 1, None, Path("train.log"), []))
    assert rows["validation accuracy"] == "countdown: 0.300 (step 0)"


def test_paths_below_the_working_folder_are_short(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert shown(tmp_path / "a" / "b") == Path("a/b")
    assert shown(Path("/elsewhere/b")) == Path("/elsewhere/b")


def whole(folder: Path, step: int) -> Path:
    """A step as verl leaves it: torch's files are zip archives."""
    actor = folder / f"global_step_{step}" / "actor"
    actor.mkdir(parents=True)
    for name in ("model_world_size_1_rank_0.pt", "optim_world_size_1_rank_0.pt", "../data.pt"):
        with ZipFile(actor / name, "w") as archive:
            archive.writestr("data", b"x" * 5000)
    (folder / "latest_checkpointed_iteration.txt").write_text(str(step))
    return actor


@pytest.mark.parametrize(
    ("damage", "step", "problem"),
    [
        (lambda folder, actor: None, 3, ""),
        (lambda folder, actor: os.truncate(actor / "optim_world_size_1_rank_0.pt", 3000), 2, "is cut off"),
        (lambda folder, actor: os.truncate(actor / "model_world_size_1_rank_0.pt", 0), 2, "is cut off"),
        (lambda folder, actor: shutil.rmtree(actor.parent), 2, "names no step that is there"),
        (lambda folder, actor: os.truncate(folder / "latest_checkpointed_iteration.txt", 0), 3, "names no step"),
        (lambda folder, actor: (folder / "latest_checkpointed_iteration.txt").unlink(), 3, "is missing"),
    ],
)
def test_a_run_goes_on_from_the_last_whole_checkpoint(tmp_path, damage, step, problem):
    whole(tmp_path, 1)
    whole(tmp_path, 2)
    damage(tmp_path, whole(tmp_path, 3))
    found, told = resumable(tmp_path)
    assert found.step == step
    assert problem in told
    assert bool(problem) == bool(told)
    go_on_from(found)
    assert last_checkpoint(tmp_path) == found
    assert resumable(tmp_path) == (found, "")


def test_an_interrupted_first_save_is_no_checkpoint_and_a_damaged_only_one_is_a_problem(tmp_path):
    actor = whole(tmp_path, 1)
    (tmp_path / "latest_checkpointed_iteration.txt").unlink()
    (actor.parent / "data.pt").unlink()
    assert resumable(tmp_path) == (None, "")
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("1")
    os.truncate(actor / "model_world_size_1_rank_0.pt", 10)
    assert resumable(tmp_path) == (None, "global_step_1/actor/model_world_size_1_rank_0.pt is cut off")
