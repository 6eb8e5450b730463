"""What the machine has, without torch."""

from __future__ import annotations

import pytest

from recipes.config import check, load, machine
from recipes.errors import RecipeError


@pytest.mark.parametrize(
    ("present", "chosen", "usable"),
    [(8, None, 8), (8, "", 0), (8, "-1", 0), (8, "0,1", 2), (2, "0,1,2,3", 2), (8, "3,-1,4", 1), (0, "0", 0)],
)
def test_visible_gpus(monkeypatch, present, chosen, usable):
    monkeypatch.setattr(machine.Path, "glob", lambda *_: [])
    monkeypatch.setattr(machine, "_ask_nvidia_smi", lambda: present)
    environ = {} if chosen is None else {"CUDA_VISIBLE_DEVICES": chosen}
    assert machine.visible_gpus(environ) == usable


def test_devices_are_counted_without_the_control_files(monkeypatch):
    names = ["nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "nvidia-caps"]
    monkeypatch.setattr(machine.Path, "glob", lambda *_: [machine.Path("/dev") / name for name in names])
    assert machine.visible_gpus({}) == 2


def test_the_machine_decides_where_nobody_does(monkeypatch):
    for count, kind in ((0, "cpu"), (1, "gpu")):
        monkeypatch.setattr(machine, "visible_gpus", lambda _environ, count=count: count)
        assert machine.kind_of_machine(None, "", {}) == kind
        assert machine.kind_of_machine("cpu", "", {}) == "cpu"
    with pytest.raises(RecipeError, match="unknown hardware 'tpu'"):
        machine.kind_of_machine("tpu", "variable HARDWARE=tpu", {})


def test_a_gpu_machine_without_flash_attention_keeps_padding(monkeypatch):
    monkeypatch.setattr(machine, "visible_gpus", lambda *_: 1)
    monkeypatch.setattr(machine.importlib.util, "find_spec", lambda _name: None)
    recipe = load("countdown", environ={}, hardware="gpu")
    assert not recipe.worker.actor.padding_free
    assert not recipe.worker.actor.dynamic_batching, "verl would fill micro-batches by tokens, then pad them"
    assert recipe.worker.actor.model.override_config == {"attn_implementation": "sdpa"}
    assert "flash-attn" in recipe.source_of("worker.actor.padding_free").where
    assert load("countdown", environ={"PADDING_FREE": "1"}, hardware="gpu").worker.actor.padding_free


@pytest.mark.parametrize("task", ["countdown", "number_game", "gsm8k"])
@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_the_fixed_micro_batches_of_such_a_machine_divide(task, algorithm, monkeypatch):
    monkeypatch.setattr(machine, "visible_gpus", lambda *_: 8)
    monkeypatch.setattr(machine.importlib.util, "find_spec", lambda _name: None)
    recipe = load(task, environ={"ALGORITHM": algorithm}, hardware="gpu")
    assert not recipe.worker.critic.dynamic_batching
    check(recipe, 8)
    one_short = {"ALGORITHM": algorithm, "ROLLOUT_BATCH_SIZE": "24", "GLOBAL_BATCH_SIZE": "24", "MICRO_BATCH_SIZE": "7"}
    with pytest.raises(RecipeError, match="not a multiple of worker.actor.micro_batch_size_per_device_for_update 7"):
        check(load(task, environ=one_short, hardware="gpu"), 8)


def test_a_machine_without_gpus_says_nothing_about_flash_attention(monkeypatch):
    monkeypatch.setattr(machine, "visible_gpus", lambda *_: 0)
    assert load("countdown", environ={}, hardware="gpu").worker.actor.padding_free
