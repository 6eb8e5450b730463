"""The checkpoint that a run goes on from."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from zipfile import ZipFile

import pytest

from recipes.engines.checkpoints import go_on_from, last_checkpoint, resumable


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
