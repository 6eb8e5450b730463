"""Folders that cannot be written, little shared memory, and GPUs that are not there."""

from __future__ import annotations

import os
import shutil
from types import SimpleNamespace

import pytest

from recipes import preflight
from recipes.errors import RecipeError
from recipes.preflight import machine


@pytest.fixture
def calm(monkeypatch):
    """A machine on which no other Ray runs and files are plenty, whatever the one is that the tests run on."""
    monkeypatch.setattr(machine, "stale_ray", list)
    monkeypatch.setattr(machine, "open_files", list)


def test_a_good_machine(make, monkeypatch, calm):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1 << 40))
    assert machine.check_machine(make()) == []


def test_a_folder_that_is_a_file(make, files):
    (files / "taken").write_text("")
    with pytest.raises(RecipeError, match="taken is a file") as caught:
        machine.check_machine(make(f"trainer.save_checkpoint_path={files}/taken"))
    assert caught.value.where == "trainer.save_checkpoint_path"


def test_a_folder_that_cannot_be_written(make, files, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: "locked" not in str(path))
    (files / "locked").mkdir()
    with pytest.raises(RecipeError, match="locked cannot be written"):
        machine.check_machine(make(f"trainer.save_checkpoint_path={files}/locked/deeper"))


def test_little_shared_memory_is_remarked(make, monkeypatch, calm):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=64 << 20))
    (remark,) = machine.check_machine(make())
    assert "64 MiB free" in remark
    assert "--shm-size" in remark


def test_more_gpus_than_there_are(make, monkeypatch):
    monkeypatch.setattr(preflight, "visible_gpus", lambda: 2)
    recipe = make("trainer.n_gpus_per_node=4", "data.rollout_batch_size=16").model_copy(update={"hardware": "gpu"})
    with pytest.raises(RecipeError, match="this machine has 2 GPUs") as caught:
        preflight.check_before_data(recipe)
    assert "GPUS_PER_NODE=2" in caught.value.fix
    monkeypatch.setattr(preflight, "visible_gpus", lambda: 0)
    with pytest.raises(RecipeError, match="this machine has no NVIDIA GPU that a process may use") as caught:
        preflight.check_before_data(recipe)
    assert "HARDWARE=cpu" in caught.value.fix


def test_tensor_parallel_size_that_does_not_divide(make, monkeypatch):
    monkeypatch.setattr(preflight, "visible_gpus", lambda: 8)
    recipe = make("trainer.n_gpus_per_node=8", "worker.rollout.tensor_parallel_size=3")
    with pytest.raises(RecipeError, match="3 does not divide the 8 GPUs"):
        preflight.check_before_data(recipe.model_copy(update={"hardware": "gpu"}))


def test_every_independent_mistake_is_said_at_once(make):
    with pytest.raises(RecipeError) as caught:
        preflight.run_checks(make("data.train_files=/no.parquet", "worker.actor.model.model_path=/no/model"))
    for mistake in ("the model /no/model does not exist", "the data file /no.parquet does not exist"):
        assert mistake in str(caught.value)
    found = preflight.findings(make("data.train_files=/no.parquet", f"trainer.save_checkpoint_path={__file__}/x"))
    assert len(found.errors) == 2
    assert set(found.skipped) == {"disk", "reward", "images", "early stop"}


@pytest.mark.parametrize("hardware", ["cpu", "gpu"])
def test_an_untested_verl_is_refused_before_any_data_is_made(hardware, make, monkeypatch):
    monkeypatch.setattr("recipes.engines.support.installed", lambda name: "0.1.0")
    monkeypatch.setattr(preflight, "visible_gpus", lambda: 8)
    recipe = make().model_copy(update={"hardware": hardware})
    with pytest.raises(RecipeError, match=r"verl 0.1.0 has not been tested"):
        preflight.check_before_data(recipe)
    preflight.check_before_data(recipe.model_copy(update={"engine": "easyr1"}))


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
    with pytest.raises(
        RecipeError, match=r"GPU 1 has 74.7 GB .* 4242 \(python3\), 4243 \(VLLM::EngineCore\)"
    ) as caught:
        on("GPU-bbbb", 1)
    assert "CUDA_VISIBLE_DEVICES=0 GPUS_PER_NODE=1" in caught.value.fix
    with pytest.raises(RecipeError, match="GPU 2 has 21.0 GB"):
        on("2", 1, "0.9")


def test_a_logger_that_is_not_installed(make, monkeypatch):
    monkeypatch.setitem(machine.PACKAGES, "swanlab", "no_such_module")
    with pytest.raises(RecipeError, match="swanlab is not installed") as caught:
        machine.check_machine(make("trainer.logger=[console,swanlab]"))
    assert "pip install" in caught.value.fix


def test_few_open_files_and_a_ray_without_a_run_are_remarked(monkeypatch):
    monkeypatch.setattr(machine.resource, "getrlimit", lambda what: (1024, 1 << 20))
    (remark,) = machine.open_files()
    assert "1,024 files" in remark
    assert "ulimit -n 1048576" in remark

    def process(pid, name, user, parent):
        info = {"name": name, "uids": SimpleNamespace(real=user), "ppid": parent}
        return SimpleNamespace(pid=pid, info=info)

    me = os.getuid()
    running = [process(7, "raylet", me, 1), process(8, "raylet", me, 90), process(9, "raylet", me + 1, 1)]
    monkeypatch.setattr(machine.psutil, "process_iter", lambda names: running)
    (remark,) = machine.stale_ray()
    assert "processes 7)" in remark
    monkeypatch.setattr(machine.psutil, "process_iter", lambda names: running[1:])
    assert machine.stale_ray() == []
