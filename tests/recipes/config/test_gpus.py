"""What GPUs decide: how many there are, what fits them, kernels; and loggers with a login at W&B."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from recipes.config import check, gpus, load
from recipes.config.loggers import logged_in, logger_environment
from recipes.engines.verl import translation as verl
from recipes.errors import RecipeError
from recipes.memory import fit
from recipes.memory import gpus as nvidia
from recipes.memory import shape as shapes

LISTED = ["console", "file", "wandb"]


@pytest.mark.parametrize(
    ("devices", "smi", "chosen", "usable"),
    [
        ([], "GPU 0: H200\nGPU 1: H200\n", None, 2),
        (["nvidia0", "nvidia1"], "", "1,-1,0", 1),
    ],
)
def test_visible_gpus(monkeypatch, devices, smi, chosen, usable):
    monkeypatch.setattr(nvidia.Path, "glob", lambda *_: [nvidia.Path("/dev") / name for name in devices])
    monkeypatch.setattr(nvidia, "nvidia_smi", lambda *_: smi)
    environ = {} if chosen is None else {"CUDA_VISIBLE_DEVICES": chosen}
    assert nvidia.visible_gpus(environ) == usable
    assert load("countdown", environ=environ).hardware == ("gpu" if usable else "cpu")


def test_a_lost_gpu_is_not_counted_and_the_next_start_says_what_to_set(monkeypatch):
    lost = "Unable to determine the device handle for GPU1: 0000:1B:00.0: GPU is lost.\n"
    smi = f"GPU 0: NVIDIA H200 (UUID: GPU-aaaa)\n{lost}"
    monkeypatch.setattr(nvidia.Path, "glob", lambda *_: [])
    monkeypatch.setattr(nvidia, "nvidia_smi", lambda *_: smi)
    left = nvidia.visible_gpus({})
    assert left == 1
    with pytest.raises(RecipeError, match="n_gpus_per_node") as caught:
        check(load("countdown", environ={"GPUS_PER_NODE": "2"}, hardware="gpu"), left)
    assert "GPUS_PER_NODE=1" in caught.value.fix
    monkeypatch.setattr(nvidia, "nvidia_smi", lambda query, *_: "" if "compute" in query else LOST)
    assert [gpu.index for gpu in nvidia.gpus_here()] == ["0"]


def test_what_is_compiled_is_kept_where_it_can_be_written_whole(monkeypatch, tmp_path):
    """vLLM gives each version of itself, of torch and of the model a folder of its own below this one."""
    home, file = tmp_path / "cache", tmp_path / "file"
    file.touch()
    kept = {f"{name}_CACHE_DIR": str(home / place) for name, place in FOLDERS.items()}
    assert verl.compile_caches({"XDG_CACHE_HOME": str(home)}) == {**kept, verl.COMPILE_CACHE_OFF: "0"}
    assert verl.compile_caches({"XDG_CACHE_HOME": str(file)}) == {verl.COMPILE_CACHE_OFF: "1"}, "cannot be written to"
    apart = {"XDG_CACHE_HOME": str(home), "VLLM_CACHE_ROOT": str(file / "vllm")}
    assert verl.compile_caches(apart) == {**kept, verl.COMPILE_CACHE_OFF: "1"}
    recipe = load("countdown", environ={}, hardware="gpu")
    given = verl.environment(recipe, {"TRITON_CACHE_DIR": "/mine", "XDG_CACHE_HOME": str(home)})
    assert given["TRITON_CACHE_DIR"] == "/mine"
    assert given["TORCHINDUCTOR_CACHE_DIR"] == str(home / "torch" / "inductor")


FOLDERS = {"TORCHINDUCTOR": "torch/inductor", "TRITON": "triton"}
LOST = "0, GPU-aaaa, 4, 143771\n1, GPU-bbbb, [GPU is lost], [GPU is lost]\n"


def test_without_flash_attention_torch_packs_and_verl_as_it_is_keeps_padding(monkeypatch):
    monkeypatch.setattr(gpus, "visible_gpus", lambda *_: 8)
    monkeypatch.setattr(gpus.importlib.util, "find_spec", lambda _name: None)
    recipe = load("countdown", environ={}, hardware="gpu")
    actor = recipe.worker.actor
    assert actor.padding_free
    assert actor.dynamic_batching
    assert actor.model.override_config == {"attn_implementation": "torch_varlen_flash"}
    assert not actor.model.use_liger
    assert "flash-attn" in recipe.source_of("worker.actor.model.override_config").where
    check(recipe, 8)
    other = load("countdown", environ={"ENGINE": "easyr1"}, hardware="gpu")
    assert other.worker.actor.padding_free
    assert other.worker.actor.model.override_config == {}, "EasyR1 names its attention itself"
    padded = load("countdown", environ={"RECIPES_PATCHES": "0"}, hardware="gpu")
    assert padded.worker.actor.model.override_config == {"attn_implementation": "sdpa"}
    assert not any((padded.worker.actor.padding_free, padded.worker.actor.dynamic_batching))
    check(padded, 8)


QWEN3_4B = shapes.published()["Qwen/Qwen3-4B"]
H200, H100 = 143_771 << 20, 81_559 << 20


@pytest.fixture
def on_gpus(monkeypatch, tmp_path):
    """`on_gpus(memory, *arguments, **environ)`: Countdown with a Qwen3-4B shape on GPUs of so many bytes."""
    monkeypatch.setattr(gpus, "lacks", lambda *_: False)

    def build(size, *arguments, config=QWEN3_4B, **environ):
        monkeypatch.setattr(nvidia, "gpus_here", lambda: [nvidia.Gpu("0", "GPU-0", 0, size)] if size else [])
        (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
        return load("countdown", arguments=arguments, environ={"MODEL_PATH": str(tmp_path), **environ}, hardware="gpu")

    return build


def test_the_recipe_takes_what_fits_unless_somebody_decides(on_gpus):
    recipe = on_gpus(H200, GPUS_PER_NODE="1")
    actor, rollout = recipe.worker.actor, recipe.worker.rollout
    assert not actor.model.enable_gradient_checkpointing
    assert actor.use_fused_kernels
    assert 12_000 < actor.max_token_len_per_device < 16_000
    assert actor.max_token_len_per_device_for_experience == fit.MAX_FORWARD_TOKENS
    assert (rollout.max_num_seqs, rollout.cudagraph_capture_sizes[-1]) == (1_024, 1_024)
    assert on_gpus(H100, GPUS_PER_NODE="1").worker.actor.model.enable_gradient_checkpointing
    tokens = [on_gpus(H200, **given).worker.actor.max_token_len_per_device for given in ({}, {"MICRO_BATCH_SIZE": "2"})]
    assert tokens[0] == tokens[1], "packed passes are filled by tokens"
    given_ = on_gpus(H200, "worker.actor.max_token_len_per_device=4096", "worker.rollout.max_num_seqs=77").worker
    assert given_.actor.max_token_len_per_device == given_.actor.max_token_len_per_device_for_experience == 4096
    assert (given_.rollout.max_num_seqs, given_.rollout.cudagraph_capture_sizes[-1]) == (77, 77)
    for unknown in (on_gpus(None), *(on_gpus(H200, config=config) for config in ({}, [], {**QWEN3_4B, "experts": 8}))):
        assert unknown.worker.actor.model.enable_gradient_checkpointing
        assert unknown.worker.actor.max_token_len_per_device == fit.TOKENS_OF_UNKNOWN_MODEL


def test_wandb_takes_part_with_a_login_or_where_it_is_asked_for(tmp_path):
    home = {"HOME": str(tmp_path)}
    for environ, names, mode in (
        ({}, ["console", "file"], None),
        ({"LOGGER": "console,wandb", "WANDB_MODE": "disabled"}, ["console", "wandb", "file"], "disabled"),
        ({"WANDB_API_KEY": "x"}, LISTED, None),
        ({"WANDB_MODE": "offline", "WANDB_API_KEY": "x", "WANDB_ENTITY": "team"}, LISTED, "offline"),
        ({"WANDB_MODE": "disabled", "WANDB_API_KEY": "x"}, ["console", "file"], None),
    ):
        recipe = load("countdown", environ={**home, **environ}, hardware="gpu")
        assert recipe.trainer.logger == names
        handed = verl.environment(recipe, {**home, **environ})
        assert handed.get("WANDB_MODE") == mode
        assert handed.get("WANDB_ENTITY") == environ.get("WANDB_ENTITY")
    (tmp_path / ".netrc").write_text("machine api.wandb.ai\n  login user\n  password 123\n")
    assert logged_in(home)
    assert not logged_in({**home, "WANDB_BASE_URL": "https://wandb.example.org"})


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
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path / "cwd", env=environ, check=True, timeout=50)
    assert list((tmp_path / "run").glob("tensorboard/events.*"))
    assert list((tmp_path / "run").glob("wandb/offline-*"))
    assert not list((tmp_path / "cwd").iterdir())
