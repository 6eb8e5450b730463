"""What GPUs decide: how many there are, and kernels; and loggers with a login at W&B."""

from __future__ import annotations

import pytest

from recipes.config import check, gpus, load
from recipes.config.loggers import logged_in, logger_environment, loggers
from recipes.engines.verl import translation as verl
from recipes.memory import gpus as nvidia


@pytest.mark.parametrize(
    ("devices", "smi", "chosen", "usable"),
    [
        ([], "GPU 0: H200\nGPU 1: H200\n", None, 2),
        ([], "GPU 0: H200\nUnable to determine the device handle for GPU1: 0000:1B:00.0: GPU is lost.\n", None, 1),
        (["nvidia0", "nvidia1"], "", "1,-1,0", 1),
        ([], "", None, 0),
    ],
)
def test_visible_gpus(monkeypatch, devices, smi, chosen, usable):
    monkeypatch.setattr(nvidia.Path, "glob", lambda *_: [nvidia.Path("/dev") / name for name in devices])
    monkeypatch.setattr(nvidia, "nvidia_smi", lambda *_: smi)
    environ = {} if chosen is None else {"CUDA_VISIBLE_DEVICES": chosen}
    assert nvidia.visible_gpus(environ) == usable
    assert load("countdown", environ=environ).hardware == ("gpu" if usable else "cpu")


def test_what_is_compiled_is_kept_where_it_can_be_written_whole(tmp_path):
    """vLLM gives each version of itself, of torch and of the model a folder of its own below this one."""
    home, file = tmp_path / "cache", tmp_path / "file"
    file.touch()
    kept = {"TORCHINDUCTOR_CACHE_DIR": str(home / "torch/inductor"), "TRITON_CACHE_DIR": str(home / "triton")}
    assert verl.compile_caches({"XDG_CACHE_HOME": str(home)}) == {**kept, verl.COMPILE_CACHE_OFF: "0"}
    assert verl.compile_caches({"XDG_CACHE_HOME": str(file)}) == {verl.COMPILE_CACHE_OFF: "1"}, "cannot be written to"
    apart = {"XDG_CACHE_HOME": str(home), "VLLM_CACHE_ROOT": str(file / "vllm")}
    assert verl.compile_caches(apart) == {**kept, verl.COMPILE_CACHE_OFF: "1"}
    recipe = load("countdown", environ={}, hardware="gpu")
    given = verl.environment(recipe, {"TRITON_CACHE_DIR": "/mine", "XDG_CACHE_HOME": str(home)})
    assert given["TRITON_CACHE_DIR"] == "/mine"
    assert given["TORCHINDUCTOR_CACHE_DIR"] == kept["TORCHINDUCTOR_CACHE_DIR"]


@pytest.mark.parametrize(
    ("environ", "packed", "attention"),
    [
        ({}, True, {"attn_implementation": "torch_varlen_flash"}),
        ({"ENGINE": "easyr1"}, True, {}),  # it names its attention itself
        ({"RECIPES_PATCHES": "0"}, False, {"attn_implementation": "sdpa"}),  # verl as it is keeps padding
    ],
)
def test_without_flash_attention_and_liger_others_take_their_place(monkeypatch, environ, packed, attention):
    monkeypatch.setattr(gpus, "visible_gpus", lambda *_: 8)
    monkeypatch.setattr(gpus.importlib.util, "find_spec", lambda _name: None)
    recipe = load("countdown", environ=environ, hardware="gpu")
    actor = recipe.worker.actor
    assert (actor.padding_free, actor.dynamic_batching, actor.model.use_liger) == (packed, packed, False)
    assert actor.model.override_config == attention
    assert not attention or "flash-attn" in recipe.source_of("worker.actor.model.override_config").where
    check(recipe, 8)


BOTH = ["console", "wandb"]


@pytest.mark.parametrize(
    ("asked", "environ", "named", "mode"),
    [
        (False, {}, ["console", "file"], None),
        (True, {}, [*BOTH, "file"], "offline"),
        (True, {"WANDB_MODE": "disabled"}, [*BOTH, "file"], "disabled"),
        (False, {"WANDB_API_KEY": "x"}, [*BOTH, "file"], None),
        (False, {"WANDB_MODE": "offline", "WANDB_API_KEY": "x"}, [*BOTH, "file"], "offline"),
        (False, {"WANDB_MODE": "disabled", "WANDB_API_KEY": "x"}, ["console", "file"], None),
    ],
)
def test_wandb_takes_part_with_a_login_or_where_it_is_asked_for(tmp_path, asked, environ, named, mode):
    environ = {"HOME": str(tmp_path), "WANDB_ENTITY": "team", **environ}
    assert loggers(BOTH, asked, environ) == named
    handed = logger_environment(named, tmp_path / "run", environ)
    assert handed.get("WANDB_MODE") == mode
    assert handed.get("WANDB_DIR") == (str(tmp_path / "run") if "wandb" in named else None)
    assert handed.get("WANDB_ENTITY") == ("team" if "wandb" in named else None)
    (tmp_path / ".netrc").write_text("machine api.wandb.ai\n  login user\n  password 123\n")
    assert logged_in(environ)
    assert logged_in({**environ, "WANDB_BASE_URL": "https://wandb.example.org"}) == ("WANDB_API_KEY" in environ)
