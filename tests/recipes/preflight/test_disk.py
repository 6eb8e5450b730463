"""A disk that will be full is found before the trainer starts."""

from __future__ import annotations

import shutil
from types import SimpleNamespace

import pytest

from recipes.errors import RecipeError
from recipes.preflight import machine, resume


@pytest.fixture
def free(monkeypatch):
    """Sets the free bytes that the disk reports."""

    def set_free(count):
        monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=int(count)))

    return set_free


@pytest.fixture
def large(files):
    """A model of a million float32 parameters: 16 MB a checkpoint."""
    (files / "model" / "model.safetensors").write_bytes(bytes(4_000_000))


def test_the_size_of_a_checkpoint(make, large):
    assert machine.checkpoint_bytes(make()) == 16_000_000
    assert machine.checkpoint_bytes(make("trainer.save_hf_model=false")) == 12_000_000
    assert machine.checkpoint_bytes(make("trainer.save_model_only=true")) == 8_000_000
    assert machine.checkpoint_bytes(make("worker.actor.model.model_path=Qwen/Qwen3-4B")) == 0
    critic = make("algorithm.adv_estimator=gae")
    assert machine.checkpoint_bytes(critic) == 16_000_000 + 12_000_000, (
        "a critic has its optimiser, and nothing to load"
    )


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
    needed = checkpoints_kept * 16_000_000 + machine.MARGIN
    free(needed)
    assert machine.check_disk(make(*changes)) == []
    free(needed - 1)
    with pytest.raises(RecipeError, match=f"{checkpoints_kept} checkpoints of 0.0 GB") as caught:
        machine.check_disk(make(*changes))
    assert "ARTIFACTS_DIR" in caught.value.fix
    assert caught.value.where


def test_only_saves_that_are_still_to_come_count(make, large, free):
    recipe = make("trainer.max_steps=8", "trainer.save_limit=-1")
    place = resume.folder(recipe)
    (place / "global_step_6" / "actor").mkdir(parents=True)
    free(16_000_000 + machine.MARGIN)
    with pytest.raises(RecipeError, match="4 checkpoints"):
        machine.check_disk(recipe)
    (place / "latest_checkpointed_iteration.txt").write_text("6")
    assert machine.check_disk(recipe) == []


def test_a_model_that_is_still_to_be_fetched_is_said_to_be_unknown(make, free, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    free(machine.MARGIN)
    recipe = make("worker.actor.model.model_path=Qwen/Qwen3-4B")
    assert "not known before it is fetched" in machine.check_disk(recipe)[0]
    snapshot = tmp_path / "hub" / "models--Qwen--Qwen3-4B" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text('{"dtype": "bfloat16"}')
    (snapshot / "model.safetensors").write_bytes(bytes(2_000_000))
    with pytest.raises(RecipeError, match="checkpoints of 0.0 GB"):
        machine.check_disk(recipe)
