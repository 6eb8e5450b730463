"""The checkpoint that a run goes on from: the last of which every file is there that the engine opens."""

import json
import os
import shutil
from contextlib import nullcontext
from pathlib import Path
from zipfile import ZipFile

import pytest
import torch

from recipes.engines.checkpoints import (
    EASYR1,
    EVERYTHING,
    MODEL,
    NUMBERS,
    VERL,
    Expected,
    checkpoint_at,
    go_on_from,
    keep_last,
    last_checkpoint,
    numbers_variable,
    refuse_nan,
    refuse_nan_weights,
    resumable,
    saved_steps,
)

RANKS = 2


def archive(file: Path, *names: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with ZipFile(file, "w") as opened:
        for name in ("data.pkl", *names):
            opened.writestr(f"{file.stem}/{name}", b"x" * 5000)


def whole(folder: Path, step: int, layout=VERL, parts=EVERYTHING) -> Path:
    """A step as the engine leaves it: torch's files are zip archives."""
    saved = folder / f"global_step_{step}"
    for file in layout.files_of(saved, RANKS, parts):
        archive(file, "data/0")
    tracker = folder / layout.tracker
    tracker.write_text(layout.write(step, tracker.read_text() if tracker.exists() else ""))
    return saved


def expected(layout=VERL, parts=EVERYTHING) -> Expected:
    return Expected(layout, RANKS, lambda step: parts)


def remove(saved: Path, pattern: str) -> None:
    for file in saved.glob(pattern):
        shutil.rmtree(file) if file.is_dir() else file.unlink()


MODEL_1, OPTIM_1 = "actor/model_world_size_2_rank_1.pt", "actor/optim_world_size_2_rank_1.pt"


@pytest.mark.parametrize(
    ("damage", "step", "named"),
    [
        (lambda saved: os.truncate(saved / OPTIM_1, 3000), 2, OPTIM_1),
        (lambda saved: os.truncate(saved / MODEL_1, 0), 2, MODEL_1),
        (lambda saved: archive(saved / OPTIM_1), 2, OPTIM_1),  # torch's, but for the tensors
        (lambda saved: (saved / MODEL_1).write_bytes((saved / MODEL_1).read_bytes()[500:]), 2, MODEL_1),
        (lambda saved: remove(saved, "actor/extra_state*"), 2, "extra_state"),
        (lambda saved: remove(saved, "data.pt"), 2, "data.pt"),
        (lambda saved: shutil.rmtree(saved), 2, VERL.tracker),
        (lambda saved: (saved.parent / VERL.tracker).write_text("three"), 3, VERL.tracker),
        (lambda saved: (saved.parent / VERL.tracker).unlink(), 3, VERL.tracker),
    ],
)
def test_a_run_goes_on_from_the_last_whole_checkpoint(tmp_path, damage, step, named):
    whole(tmp_path, 1)
    whole(tmp_path, 2)
    saved = whole(tmp_path, 3)
    assert resumable(tmp_path, expected()) == (checkpoint_at(tmp_path, 3), [])
    damage(saved)
    found, problems = resumable(tmp_path, expected())
    assert found.step == step
    assert named in problems[0]
    go_on_from(found)
    assert last_checkpoint(tmp_path) == found
    assert resumable(tmp_path, expected()) == (found, [])


def test_what_a_step_was_saved_with_decides_what_is_asked_of_it(tmp_path):
    saved = whole(tmp_path, 1, parts={MODEL})
    assert resumable(tmp_path, expected(parts={MODEL}))[1] == []
    assert resumable(tmp_path, expected())[0] is None
    assert resumable(tmp_path, expected(parts=None))[1] == []  # nobody knows: what is there has to be whole
    archive(saved / "actor" / "optim_world_size_2_rank_0.pt", "data/0")
    assert OPTIM_1 in resumable(tmp_path, expected(parts=None))[1][0]
    for rank in range(RANKS):  # SGD has no state
        archive(saved / "actor" / f"optim_world_size_2_rank_{rank}.pt", ".data/serialization_id")
    assert resumable(tmp_path, expected(parts={MODEL, "optim"}))[1] == []


def test_easyr1s_layout_and_what_its_tracker_keeps(tmp_path):
    whole(tmp_path, 1, EASYR1)
    whole(tmp_path, 2, EASYR1)
    (tmp_path / EASYR1.tracker).write_text(json.dumps({"last_global_step": 2, "best_global_step": 1}))
    remove(tmp_path / "global_step_2", "dataloader.pt")
    found, problems = resumable(tmp_path, expected(EASYR1))
    assert found.step == 1
    assert "dataloader.pt" in problems[0]
    go_on_from(found, EASYR1)
    assert json.loads((tmp_path / EASYR1.tracker).read_text()) == {"last_global_step": 1, "best_global_step": 1}
    assert last_checkpoint(tmp_path) == found


def test_an_interrupted_first_save_is_no_checkpoint_and_a_damaged_only_one_is_a_problem(tmp_path):
    saved = whole(tmp_path, 1)
    (tmp_path / VERL.tracker).unlink()
    (saved / "data.pt").unlink()
    assert resumable(tmp_path, expected()) == (None, [])
    (tmp_path / VERL.tracker).write_text("1")
    found, problems = resumable(tmp_path, expected())
    assert found is None
    assert "data.pt" in problems[0]


@pytest.mark.parametrize(("limit", "kept"), [(1, [3]), (2, [2, 3]), (5, [1, 2, 3]), (-1, [1, 2, 3]), (None, [1, 2, 3])])
def test_the_limit_holds_over_all_starts(tmp_path, limit, kept):
    """As where each start saves one step, of which the engine knows no other."""
    for step in (1, 2, 3):
        whole(tmp_path, step)
    keep_last(tmp_path, limit)
    assert saved_steps(tmp_path) == kept


@pytest.mark.parametrize(
    ("metrics", "scales_loss", "stops"),
    [
        ({"actor/pg_loss": 0.1, "actor/grad_norm": 2.0}, False, False),
        ({"actor/pg_loss": float("nan")}, True, True),
        ({"actor/kl_loss": float("inf")}, False, True),
        ({"actor/pg_loss": 0.1, "actor/grad_norm": float("nan")}, False, True),
        ({"actor/pg_loss": 0.1, "actor/grad_norm": float("inf")}, True, False),  # the scale of the loss is lowered
    ],
)
def test_a_run_whose_numbers_are_none_stops_before_it_saves(monkeypatch, metrics, scales_loss, stops):
    layer = torch.nn.Linear(2, 1)
    for given in ({}, numbers_variable(False, scales_loss), numbers_variable(True, scales_loss)):
        monkeypatch.delenv(NUMBERS, raising=False)
        for name, value in given.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(FloatingPointError, match="step 2: actor/") if stops and given else nullcontext():
            refuse_nan(metrics, 2)
        torch.nn.init.zeros_(layer.weight)
        refuse_nan_weights(layer, 2)
        layer.weight.data[0, 1] = float("nan")
        with pytest.raises(FloatingPointError, match="step 2: the weights weight") if given else nullcontext():
            refuse_nan_weights(layer, 2)


def test_what_is_left_of_a_step_beyond_the_limit_is_no_saved_step(tmp_path):
    remove(whole(tmp_path, 1), "actor")
    whole(tmp_path, 2)
    assert saved_steps(tmp_path) == [2]
    # A step after the one that the tracker names is another branch's, or was not finished.
    whole(tmp_path, 3)
    (tmp_path / VERL.tracker).write_text("2")
    assert resumable(tmp_path, expected())[0].step == 2
