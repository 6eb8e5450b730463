"""Folders, shared memory, GPUs, Ray, loggers and the disk: what the machine lacks is found before the start."""

from __future__ import annotations

import os
import shutil
from types import SimpleNamespace

import pytest
import typer

from recipes import preflight
from recipes.errors import RecipeError
from recipes.preflight import machine, resume
from recipes.preflight.__main__ import main


@pytest.fixture
def free(monkeypatch):
    """Sets the free bytes that every disk reports."""

    def set_free(count):
        monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=int(count)))

    return set_free


def test_folders_must_be_writable_and_loggers_installed(make, files, monkeypatch):
    (files / "taken").write_text("")
    (files / "locked").mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: "locked" not in str(path))
    monkeypatch.setitem(machine.PACKAGES, "swanlab", "no_such_module")
    for change, message, where in (
        (f"trainer.save_checkpoint_path={files}/taken", "taken is a file", "trainer.save_checkpoint_path"),
        (f"trainer.save_checkpoint_path={files}/locked/deeper", "locked cannot be written", "save_checkpoint_path"),
        ("trainer.logger=[console,swanlab]", "swanlab is not installed", "trainer.logger"),
    ):
        with pytest.raises(RecipeError, match=message) as caught:
            machine.check_machine(make(change))
        assert where in caught.value.where
        assert caught.value.fix


def test_shared_memory_open_files_and_a_ray_without_a_run_are_remarked(make, monkeypatch, free):
    def process(pid, name, user, parent):
        info = {"name": name, "uids": SimpleNamespace(real=user), "ppid": parent}
        return SimpleNamespace(pid=pid, info=info)

    me = os.getuid()
    running = [process(7, "raylet", me, 1), process(8, "raylet", me, 90), process(9, "raylet", me + 1, 1)]
    monkeypatch.setattr(machine.psutil, "process_iter", lambda names: running)
    monkeypatch.setattr(machine.resource, "getrlimit", lambda what: (1024, 1 << 20))
    free(64 << 20)
    remarks = machine.check_machine(make())
    for remark, parts in zip(
        remarks, (("64 MiB", "--shm-size"), ("1,024", "-n 1048576"), ("processes 7)",)), strict=True
    ):
        assert all(part in remark for part in parts)
    running[:] = running[1:]
    monkeypatch.setattr(machine.resource, "getrlimit", lambda what: (65_536, 65_536))
    free(1 << 40)
    assert machine.check_machine(make()) == []


GPUS = """0, GPU-aaaa, 4, 81559
1, GPU-bbbb, 71234, 81559
2, GPU-cccc, 20000, 81559
3, GPU-dddd, [N/A], [N/A]
"""
PROCESSES = """GPU-bbbb, 4242, /usr/bin/python3
GPU-bbbb, 4243, VLLM::EngineCore
GPU-cccc, [N/A], [Not Found]
"""


def test_gpus_that_others_use(make, monkeypatch):
    answers = {"gpu": GPUS, "compute": PROCESSES}
    monkeypatch.setattr(machine, "nvidia_smi", lambda query, _: answers[query.split("-")[3].partition("=")[0]])

    def on(chosen, gpus, share="0.6"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
        changes = (f"trainer.n_gpus_per_node={gpus}", f"worker.rollout.gpu_memory_utilization={share}")
        return machine.gpus_in_use(make(*changes))

    assert on("0", 1) == []
    assert on("0,1", 1) == [], "the run takes the first one only"
    assert on("2", 1) == ["GPU 2 has 21.0 GB of 85.5 GB in use by a process that is not shown here"]
    by = r"GPU 1 has 74.7 GB .* 4242 \(python3\), 4243 \(VLLM::EngineCore\)"
    with pytest.raises(RecipeError, match=by) as caught:
        on("GPU-bbbb", 1)
    assert "CUDA_VISIBLE_DEVICES=0 GPUS_PER_NODE=1" in caught.value.fix
    with pytest.raises(RecipeError, match="GPU 2 has 21.0 GB"):
        on("2", 1, "0.9")


def test_every_independent_mistake_is_an_error_at_once(make):
    with pytest.raises(RecipeError) as caught:
        preflight.run_checks(make("data.train_files=/no.parquet", "worker.actor.model.model_path=/no/model"))
    for mistake in ("the model /no/model does not exist", "the data file /no.parquet does not exist"):
        assert mistake in str(caught.value)
    found = preflight.findings(make("data.train_files=/no.parquet", f"trainer.save_checkpoint_path={__file__}/x"))
    assert len(found.errors) == 2
    assert set(found.skipped) == {"disk", "reward", "images", "early stop"}


def test_the_command_reports_what_is_wrong_in_a_users_file_beside_the_rest(files, capsys):
    (files / "mine.json").write_text('[{"prompt": "p", "data_source": "qa"}]')
    with pytest.raises(typer.Exit):
        main("custom", ["--data", f"{files}/mine.json", "hardware=cpu", "worker.actor.model.model_path=/no/model"])
    printed = capsys.readouterr()
    assert "not checked: hub, chat template, memory, data, disk, reward, images, early stop" in printed.out
    assert "there is no field ground_truth" in printed.err
    assert "the model /no/model does not exist" in printed.err


def test_gpus_and_the_engines_version_are_checked_before_any_data_is_made(make, monkeypatch):
    recipe = make().model_copy(update={"hardware": "gpu"})
    monkeypatch.setattr(preflight, "visible_gpus", lambda: 0)
    with pytest.raises(RecipeError, match="this machine has no NVIDIA GPU that a process may use") as caught:
        preflight.check_before_data(recipe)
    assert "HARDWARE=cpu" in caught.value.fix
    monkeypatch.setattr("recipes.engines.support.installed", lambda name: "0.1.0")
    for change, plan_only in (({"hardware": "cpu"}, False), ({}, True)):
        with pytest.raises(RecipeError, match=r"verl 0.1.0 has not been tested"):
            preflight.check_before_data(recipe.model_copy(update=change), plan_only)
    preflight.check_before_data(recipe.model_copy(update={"engine": "easyr1"}), plan_only=True)


@pytest.fixture
def large(files):
    """A model of a million float32 parameters: 16 MB a checkpoint."""
    (files / "model" / "model.safetensors").write_bytes(bytes(4_000_000))


@pytest.mark.parametrize(
    ("changes", "checkpoints_kept", "megabytes"),
    [
        (["trainer.max_steps=4", "trainer.save_limit=3"], 2, 16),
        (["trainer.max_steps=40", "trainer.save_limit=3", "trainer.save_hf_model=false"], 4, 12),
        (["trainer.max_steps=40", "trainer.save_limit=-1", "trainer.save_model_only=true"], 20, 8),
        (["trainer.max_steps=40", "trainer.save_freq=-1"], 0, 0),
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


def test_only_saves_that_are_still_to_come_count(make, large, free):
    recipe = make("trainer.max_steps=8", "trainer.save_limit=-1")
    place = resume.folder(recipe)
    (place / "global_step_6" / "actor").mkdir(parents=True)
    free(16_000_000 + machine.MARGIN)
    with pytest.raises(RecipeError, match="4 checkpoints"):
        machine.check_disk(recipe)
    (place / "latest_checkpointed_iteration.txt").write_text("6")
    assert machine.check_disk(recipe) == []
