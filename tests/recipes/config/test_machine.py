"""What the machine and the user's accounts have, without torch: GPUs, flash-attn, a login at W&B."""

from __future__ import annotations

import json

import pytest

from recipes.config import check, gpus, load, machine
from recipes.config.machine import logged_in, loggers, wandb_environment
from recipes.engines import verl
from recipes.errors import RecipeError

LISTED = ["console", "file", "wandb"]


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


def test_the_machine_decides_where_no_layer_does(monkeypatch):
    for count, kind in ((0, "cpu"), (1, "gpu")):
        monkeypatch.setattr(machine, "visible_gpus", lambda _environ, count=count: count)
        assert machine.kind_of_machine(None, "", {}) == machine.kind_of_machine("auto", "", {}) == kind
        assert machine.kind_of_machine("cpu", "", {}) == "cpu"
    with pytest.raises(RecipeError, match="unknown hardware 'tpu'"):
        machine.kind_of_machine("tpu", "variable HARDWARE=tpu", {})


@pytest.fixture
def eight_gpus(monkeypatch):
    """`eight_gpus(torch_packs)`: a machine with GPUs, without flash-attn and liger-kernel."""

    def build(torch_packs: bool) -> None:
        monkeypatch.setattr(machine, "visible_gpus", lambda *_: 8)
        monkeypatch.setattr(machine.importlib.util, "find_spec", lambda _name: None)
        monkeypatch.setattr(gpus, "has_packed_attention", lambda: torch_packs)

    return build


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_without_flash_attention_torch_packs(algorithm, eight_gpus):
    eight_gpus(torch_packs=True)
    recipe = load("countdown", environ={"ALGORITHM": algorithm}, hardware="gpu")
    networks = [recipe.worker.actor, recipe.worker.critic]
    for network in networks if algorithm == "ppo" else networks[:1]:
        assert network.padding_free
        assert network.dynamic_batching
        assert network.model.override_config == {"attn_implementation": "torch_varlen_flash"}
        assert not network.model.use_liger
    assert "flash-attn" in recipe.source_of("worker.actor.model.override_config").where
    check(recipe, 8)
    other = load("countdown", environ={"ENGINE": "easyr1"}, hardware="gpu")
    assert other.worker.actor.model.override_config == {"attn_implementation": "sdpa"}, "EasyR1 has no such attention"


def test_a_model_that_cannot_be_packed_keeps_its_padding(eight_gpus, tmp_path):
    eight_gpus(torch_packs=True)
    for name, packed in (("gemma2", False), ("qwen3", True)):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": name}), encoding="utf-8")
        recipe = load("countdown", environ={"MODEL_PATH": str(tmp_path)}, hardware="gpu")
        assert recipe.worker.actor.padding_free == packed
        assert recipe.worker.actor.dynamic_batching == packed
        assert packed or "gemma2 cannot be packed" in recipe.source_of("worker.actor.padding_free").where


def test_an_older_torch_keeps_padding(eight_gpus):
    eight_gpus(torch_packs=False)
    recipe = load("countdown", environ={}, hardware="gpu")
    assert not recipe.worker.actor.padding_free
    assert not recipe.worker.actor.dynamic_batching, "verl would fill micro-batches by tokens, then pad them"
    assert recipe.worker.actor.model.override_config == {"attn_implementation": "sdpa"}
    assert recipe.worker.actor.model.enable_gradient_checkpointing
    assert load("countdown", environ={"PADDING_FREE": "1"}, hardware="gpu").worker.actor.padding_free


@pytest.mark.parametrize("task", ["countdown", "number_game", "gsm8k"])
@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_the_fixed_micro_batches_of_such_a_machine_divide(task, algorithm, eight_gpus):
    eight_gpus(torch_packs=False)
    recipe = load(task, environ={"ALGORITHM": algorithm}, hardware="gpu")
    assert not recipe.worker.critic.dynamic_batching
    check(recipe, 8)
    one_short = {"ALGORITHM": algorithm, "ROLLOUT_BATCH_SIZE": "24", "GLOBAL_BATCH_SIZE": "24", "MICRO_BATCH_SIZE": "7"}
    with pytest.raises(RecipeError, match="not a multiple of worker.actor.micro_batch_size_per_device_for_update 7"):
        check(load(task, environ=one_short, hardware="gpu"), 8)


def test_a_machine_without_gpus_says_nothing_about_flash_attention(monkeypatch):
    monkeypatch.setattr(machine, "visible_gpus", lambda *_: 0)
    assert load("countdown", environ={}, hardware="gpu").worker.actor.padding_free


def test_wandb_takes_part_with_a_login_or_where_it_is_asked_for(tmp_path):
    home = {"HOME": str(tmp_path)}
    assert not logged_in(home)
    assert loggers(LISTED, asked=False, environ=home) == ["console", "file"]
    assert loggers(LISTED, asked=True, environ=home) == LISTED
    assert loggers(["console"], asked=True, environ=home) == ["console", "file"]
    assert wandb_environment(LISTED, home) == {"WANDB_MODE": "offline"}
    assert wandb_environment(["console"], home) == wandb_environment(LISTED, {**home, "WANDB_MODE": "disabled"}) == {}
    (tmp_path / ".netrc").write_text("machine api.wandb.ai\n  login user\n  password 123\n")
    assert logged_in(home)
    assert not logged_in({**home, "WANDB_BASE_URL": "https://wandb.example.org"})
    assert loggers(LISTED, asked=False, environ=home) == LISTED
    assert wandb_environment(LISTED, home) == {}
    (tmp_path / ".netrc").write_text("machine\n\nnonsense here")
    assert not logged_in(home)


@pytest.mark.parametrize(
    ("environ", "names", "mode"),
    [
        ({}, ["console", "file"], None),
        ({"LOGGER": "console,wandb"}, ["console", "wandb", "file"], "offline"),
        ({"WANDB_API_KEY": "x"}, LISTED, None),
    ],
)
def test_loggers_from_recipe_to_trainer(tmp_path, environ, names, mode):
    environ = {"HOME": str(tmp_path), **environ}
    recipe = load("countdown", environ=environ, hardware="gpu")
    assert recipe.trainer.logger == names
    assert verl.environment(recipe, environ).get("WANDB_MODE") == mode


def test_loggers_write_to_the_runs_folder_unless_the_user_says_where(tmp_path):
    names = ["console", "tensorboard", "mlflow", "swanlab"]
    found = machine.logger_environment(names, tmp_path, {"MLFLOW_TRACKING_URI": "http://mine"})
    assert found == {
        "TENSORBOARD_DIR": f"{tmp_path}/tensorboard",
        "SWANLAB_LOG_DIR": f"{tmp_path}/swanlab",
        "SWANLAB_MODE": "offline",
    }
    assert machine.logger_environment(["console", "file"], tmp_path, {}) == {}
