"""Folders, shared memory, GPUs, Ray, loggers and the disk: what the machine lacks is found before the start."""

from __future__ import annotations

import shutil
from types import SimpleNamespace

import pytest
import typer

from recipes.config import load
from recipes.errors import RecipeError
from recipes.memory.shape import shape
from recipes.paths import ROOT
from recipes.preflight import machine
from recipes.preflight.cli import main


@pytest.fixture
def free(monkeypatch):
    """Sets the free bytes that every disk reports."""

    def set_free(count):
        monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=int(count)))

    return set_free


def test_folders_must_be_writable_and_loggers_installed(make, files, monkeypatch):
    (files / "taken").write_text("")
    monkeypatch.setitem(machine.PACKAGES, "swanlab", "no_such_module")
    for change, message, where in (
        (f"trainer.save_checkpoint_path={files}/taken", "taken is a file", "trainer.save_checkpoint_path"),
        ("trainer.save_checkpoint_path=/proc/nope", "/proc/nope cannot be written", "trainer.save_checkpoint_path"),
        ("trainer.logger=[console,swanlab]", "swanlab is not installed", "trainer.logger"),
    ):
        with pytest.raises(RecipeError, match=message) as caught:
            machine.check_machine(make(change))
        assert where in caught.value.where
        assert caught.value.fix


def test_the_command_reports_what_is_wrong_in_a_users_file_beside_the_rest(files, capsys):
    (files / "mine.json").write_text('[{"prompt": "p", "data_source": "qa"}]')
    with pytest.raises(typer.Exit):
        main("custom", ["--data", f"{files}/mine.json", "hardware=cpu", "worker.actor.model.model_path=/no/model"])
    printed = capsys.readouterr()
    assert "not checked: hub, chat template, memory, data, disk, reward, images, early stop" in printed.out
    assert "no column ground_truth" in printed.err
    assert "the model /no/model does not exist" in printed.err


def test_artifacts_below_a_file_are_refused(files, monkeypatch):
    (files / "taken").write_text("")
    monkeypatch.setenv("ARTIFACTS_DIR", f"{files}/taken/artifacts")
    with pytest.raises(RecipeError, match="taken is a file, not a folder") as caught:
        load("countdown", environ={})
    assert "ARTIFACTS_DIR=" in caught.value.where


@pytest.fixture
def large(files):
    """A model of a million float32 parameters: 16 MB a checkpoint."""
    (files / "model" / "model.safetensors").write_bytes(bytes(4_000_000))


@pytest.mark.parametrize(
    ("changes", "checkpoints_kept", "megabytes"),
    [
        (["trainer.max_steps=4", "trainer.save_limit=3"], 2, 16),
        (["trainer.max_steps=40", "trainer.save_limit=3", "trainer.save_hf_model=false"], 4, 12),
        (["trainer.max_steps=4", "algorithm.adv_estimator=gae"], 2, 16 + 12),  # a critic has nothing to load
    ],
)
def test_every_checkpoint_that_is_kept_must_fit(make, large, free, changes, checkpoints_kept, megabytes):
    needed = checkpoints_kept * megabytes * 10**6 + machine.MARGIN
    free(needed)
    assert machine.check_disk(make(*changes)) == []
    free(needed - 1)
    with pytest.raises(RecipeError, match=f"{checkpoints_kept} checkpoints of 0.0 GB") as caught:
        machine.check_disk(make(*changes))
    assert "ARTIFACTS_DIR" in caught.value.fix
    assert caught.value.where


def test_a_checkpoint_with_adapters_holds_them_and_one_whole_model():
    """12 bytes a trained weight, 4 for each of the model to load."""
    tiny = ROOT / "recipes/tasks/countdown/tiny"
    recipe = load("custom", environ={"LORA_RANK": "8", "MODEL_PATH": str(tiny)}, hardware="gpu")
    sizes = shape(tiny)
    assert sizes is not None
    whole = machine.HUGGINGFACE * machine.parameters(tiny)
    assert machine.checkpoint_bytes(recipe) == whole + 12 * sizes.adapter_parameters(8)
    environ = {"LORA_RANK": "8", "MODEL_PATH": str(tiny)}  # and without it the shards hold the whole model
    recipe = load("custom", arguments=["trainer.save_hf_model=false"], environ=environ, hardware="gpu")
    assert machine.checkpoint_bytes(recipe) == machine.SHARDS * machine.parameters(tiny)
