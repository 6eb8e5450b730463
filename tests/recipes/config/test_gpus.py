"""Number and kernels of GPUs, and loggers with a login at W&B."""

import subprocess
import sys

import pytest

from recipes.config import check, gpus, load
from recipes.config.resolve import logged_in
from recipes.engines.loggers import logger_environment
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


@pytest.mark.parametrize(
    ("chosen", "usable"),
    [
        *[
            (text, 0)
            for text in ("", "-1,0", "7", "GPU-ff,0", "GPU-", "NoDevFiles", "none", "MIG-4", "0,0", "0,GPU-aa1")
        ],
        *[(text, 1) for text in ("1", "0,7", "0,-1", "GPU-aa1", "0,GPU-aa", "MIG-3", "MIG-GPU-aa1/7/0", "1,")],
        *[(text, 2) for text in ("1, 0", "GPU-aa2,0", "0,1,2,3")],
    ],
)
def test_the_devices_before_the_first_word_that_names_none_are_visible(monkeypatch, chosen, usable):
    listed = "GPU 0: H200 (UUID: GPU-aa1)\n  MIG 1g.18gb  Device  0: (UUID: MIG-3)\nGPU 1: H200 (UUID: GPU-aa2)\n"
    monkeypatch.setattr(nvidia.Path, "glob", lambda *_: [])
    monkeypatch.setattr(nvidia, "nvidia_smi", lambda *_: listed)
    assert nvidia.visible_gpus({"CUDA_VISIBLE_DEVICES": chosen}) == usable


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
    check(recipe)


def test_wandb_takes_part_with_a_login_or_where_it_is_asked_for(tmp_path):
    home, everywhere = {"HOME": str(tmp_path)}, ["console", "file", "wandb"]
    for environ, names, mode in (
        ({}, ["console", "file"], None),
        ({"LOGGER": "console,wandb"}, ["console", "wandb", "file"], "offline"),
        ({"LOGGER": "console,wandb", "WANDB_MODE": "disabled"}, ["console", "wandb", "file"], "disabled"),
        ({"WANDB_API_KEY": "x"}, everywhere, None),
        ({"WANDB_MODE": "offline", "WANDB_API_KEY": "x", "WANDB_ENTITY": "team"}, everywhere, "offline"),
        ({"WANDB_MODE": "disabled", "WANDB_API_KEY": "x"}, ["console", "file"], None),
    ):
        recipe = load("countdown", environ={**home, **environ}, hardware="gpu")
        assert recipe.trainer.logger == names
        assert ("`wandb login`" in str(recipe.resolution.notes)) is (environ == {"LOGGER": "console,wandb"})
        handed = verl.environment(recipe, {**home, **environ})
        assert handed.get("WANDB_MODE") == mode
        assert handed.get("WANDB_ENTITY") == environ.get("WANDB_ENTITY")
    (tmp_path / "mine.yaml").write_text("trainer: {logger: [file, wandb]}")
    (note,) = load(str(tmp_path / "mine.yaml"), environ=home, hardware="gpu").resolution.notes
    assert "mine.yaml: wandb is left out (LOGGER=file,wandb" in note
    (note,) = load("countdown", environ={**home, "LOGGER": "swanlab"}, hardware="gpu").resolution.notes
    assert "SWANLAB_API_KEY" in note
    (tmp_path / ".netrc").write_text("machine api.wandb.ai\n  login user\n  password 123\n")
    assert logged_in(home)
    assert not logged_in({**home, "WANDB_BASE_URL": "https://wandb.example.org"})


@pytest.mark.timeout(240)  # verl's imports
def test_verls_own_tracking_writes_to_the_runs_folder_unless_the_user_says_where(tmp_path):
    """W&B offline, without a login and without the network."""
    pytest.importorskip("tensorboard")
    code = (
        "from verl.utils.tracking import Tracking\n"
        "log = Tracking('project', 'experiment', ['tensorboard', 'wandb'], config={})\n"
        "log.log({'actor/entropy': 0.2}, step=1)"
    )
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    environ |= logger_environment(["tensorboard", "wandb"], tmp_path / "run", environ)
    for folder in ("run", "cwd"):
        (tmp_path / folder).mkdir()
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path / "cwd", env=environ, check=True, timeout=230)
    assert list((tmp_path / "run").glob("tensorboard/events.*"))
    assert list((tmp_path / "run").glob("wandb/offline-*"))
    assert not list((tmp_path / "cwd").iterdir())
