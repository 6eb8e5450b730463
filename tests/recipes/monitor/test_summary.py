"""The closing table, and the checkpoint that a run goes on from."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from zipfile import ZipFile

import pytest

from recipes.engines.checkpoints import Checkpoint, go_on_from, last_checkpoint, resumable, saved_steps
from recipes.monitor.metrics import Step
from recipes.monitor.summary import shown, summary, table


def val(step, accuracy):
    return Step(step, {"val-core/countdown/acc/mean@1": accuracy})


def test_the_table_says_what_was_reached_and_what_to_type(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert shown(Path("/elsewhere/b")) == Path("/elsewhere/b")
    step = tmp_path / "c" / "global_step_40"
    checkpoint = Checkpoint(40, step, step / "actor/huggingface")
    long = "python scripts/eval.py --model_path " + "x" * 300
    history = [val(0, 0.3), Step(1, {}), val(20, 0.5), val(40, 0.6)]
    rows = summary(history, 40, checkpoint, tmp_path / "train.log", [("evaluate", long)])
    assert rows == [
        ("steps", "40 of 40"),
        ("validation accuracy", "countdown: 0.300 (step 0) -> 0.600 (step 40)"),
        ("checkpoint", "c/global_step_40/actor/huggingface"),
        ("log", "train.log"),
        ("evaluate", long),
    ]
    assert f"evaluate             {long}" in table(rows).splitlines(), "a command is not broken into lines"


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        ([Step(1, {})], {"steps": "1", "checkpoint": "none was saved", "log": "train.log"}),
        ([val(0, 0.3)], {"steps": "0", "validation accuracy": "countdown: 0.300 (step 0)"}),
    ],
)
def test_the_table_of_a_short_run(history, expected):
    assert dict(summary(history, None, None, Path("train.log"), [])).items() >= expected.items()


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
        (lambda folder, actor: (folder / "latest_checkpointed_iteration.txt").write_text("three"), 3, "names no step"),
        (lambda folder, actor: (folder / "latest_checkpointed_iteration.txt").unlink(), 3, "is missing"),
    ],
)
def test_a_run_goes_on_from_the_last_whole_checkpoint(tmp_path, damage, step, problem):
    whole(tmp_path, 1)
    whole(tmp_path, 2)
    damage(tmp_path, whole(tmp_path, 3))
    found, damaged = resumable(tmp_path)
    assert (found.step, bool(damaged)) == (step, bool(problem))
    assert problem in damaged
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
    shutil.rmtree(actor)
    assert (last_checkpoint(tmp_path).model, saved_steps(tmp_path)) == (None, []), "rotation leaves an empty folder"
