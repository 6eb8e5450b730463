"""A disk that will be full is found before the trainer starts."""

from __future__ import annotations

import shutil
from types import SimpleNamespace

import pytest

from recipes.errors import RecipeError
from recipes.preflight import checkpoints, disk


@pytest.fixture
def free(monkeypatch):
    """Sets the free bytes that the disk reports."""

    def set_free(count):
        monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=int(count)))

    return set_free


@pytest.fixture
def large(files):
    """A model of a million float32 parameters: 14 MB a checkpoint."""
    (files / "model" / "model.safetensors").write_bytes(bytes(4_000_000))


def test_the_size_of_a_checkpoint(make, large):
    assert disk.checkpoint_bytes(make()) == 14_000_000
    assert disk.checkpoint_bytes(make("trainer.save_hf_model=false")) == 12_000_000
    assert disk.checkpoint_bytes(make("trainer.save_model_only=true")) == 6_000_000
    assert disk.checkpoint_bytes(make("worker.actor.model.model_path=Qwen/Qwen3-4B")) == 0


@pytest.mark.parametrize(
    ("changes", "checkpoints_kept"),
    [
        (["trainer.max_steps=4", "trainer.save_limit=3"], 2),
        (["trainer.max_steps=40", "trainer.save_limit=3"], 4),
        (["trainer.max_steps=40", "trainer.save_limit=-1"], 20),
        (["trainer.max_steps=40", "trainer.save_freq=-1"], 0),
    ],
)
def test_every_checkpoint_that_is_kept_must_fit(make, large, free, changes, checkpoints_kept):
    needed = checkpoints_kept * 14_000_000 + disk.MARGIN
    free(needed)
    assert disk.inspect(make(*changes)) == []
    free(needed - 1)
    with pytest.raises(RecipeError, match=f"{checkpoints_kept} checkpoints of 0.0 GB") as caught:
        disk.inspect(make(*changes))
    assert "ARTIFACTS_DIR" in caught.value.fix
    assert caught.value.where


def test_checkpoints_that_are_there_make_room_when_they_go(make, large, free):
    recipe = make("trainer.max_steps=40", "trainer.save_limit=3")
    old = checkpoints.folder(recipe) / "global_step_2" / "actor"
    old.mkdir(parents=True)
    (old / "model.pt").write_bytes(bytes(14_000_000))
    free(3 * 14_000_000 + disk.MARGIN)
    assert disk.inspect(recipe) == []
