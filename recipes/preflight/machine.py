"""The machine, before the trainer starts: Ray, loggers, open files, shared memory, disk."""

from __future__ import annotations

import importlib.util
import os
import resource
import shutil
import tempfile
from pathlib import Path

import psutil

from recipes.config import Recipe, accounting, path_keys
from recipes.data.rows import row_count
from recipes.engines.verl import saves_adapters_alone
from recipes.errors import RecipeError
from recipes.memory.shape import shape
from recipes.model_files import local_model, model_config, text_config, weight_files
from recipes.paths import run_dir
from recipes.preflight import resume

SHARED_MEMORY = Path("/dev/shm")
SMALL_SHARED_MEMORY = {"cpu": 512 << 20, "gpu": 8 << 30}
"""Bytes below which Ray's object store, the weight transfer or NCCL fail: containers have 64 MiB by default."""


def check_machine(recipe: Recipe) -> list[str]:
    """Raise where an output folder cannot be written, or a logger is not installed.

    Returns:
        Remarks on little shared memory, few open files, and Ray processes that are left over.
    """
    outputs = [(key.key, Path(key.path)) for key in path_keys(recipe) if key.kind == "output"]
    outputs.append(("the run's folder", run_dir(recipe.trainer.experiment_name or recipe.name)))
    for name, folder in outputs:
        _writable(name, folder)
    _loggers_installed(recipe)
    return [*_shared_memory(recipe.hardware), *open_files(), *stale_ray()]


PACKAGES = {"wandb": "wandb", "tensorboard": "tensorboard", "swanlab": "swanlab", "mlflow": "mlflow"}
"""Logger -> the module that the trainer imports for it."""


def _loggers_installed(recipe: Recipe) -> None:
    for logger in recipe.trainer.logger:
        if logger in PACKAGES and importlib.util.find_spec(PACKAGES[logger]) is None:
            fix = f"pip install {PACKAGES[logger]}, or leave {logger} out of LOGGER"
            raise recipe.error(f"the logger {logger} is not installed", fix, "trainer.logger")


OPEN_FILES = 4_096
"""Ray and vLLM hold sockets and files by the hundred in each process; Ray's own advice is 65,536."""


def open_files() -> list[str]:
    """Remark on a low limit of open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= OPEN_FILES:
        return []
    most = 65_536 if hard == resource.RLIM_INFINITY else hard
    return [f"a process may open only {soft:,} files; Ray can need more: ulimit -n {most}"]


RAY = ("raylet", "gcs_server")


def stale_ray() -> list[str]:
    """Remark on Ray processes of this user that nothing started by a run keeps: they hold memory, ports and GPUs."""
    pids = [
        process.pid
        for process in psutil.process_iter(["name", "uids", "ppid"])
        if process.info["name"] in RAY and process.info["ppid"] == 1
        if process.info["uids"] and process.info["uids"].real == os.getuid()
    ]
    if not pids:
        return []
    listed = ", ".join(map(str, sorted(pids)))
    return [
        f"Ray is running outside of a run (processes {listed}): `ray stop` ends it, unless it is a cluster of yours"
    ]


def _writable(name: str, folder: Path) -> None:
    nearest = folder
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    if not nearest.is_dir() and name != "trainer.ray_timeline":
        raise RecipeError(f"{nearest} is a file, not a folder", where=name, fix="move it away, or give another folder")
    try:  # asking for permissions is not enough: root has them for /proc too
        os.rmdir(tempfile.mkdtemp(dir=nearest if nearest.is_dir() else nearest.parent))
    except OSError as error:
        raise RecipeError(
            f"{folder} cannot be written: {error.strerror}",
            where=f"{name}: {nearest}",
            fix="change its permissions, or give another folder with CHECKPOINT_DIR or ARTIFACTS_DIR",
        ) from error


def _shared_memory(hardware: str) -> list[str]:
    if not SHARED_MEMORY.is_dir():
        return []
    free, needed = shutil.disk_usage(SHARED_MEMORY).free, SMALL_SHARED_MEMORY[hardware]
    if free >= needed:
        return []
    return [
        f"{SHARED_MEMORY} has only {free / 2**20:.0f} MiB free; Ray and NCCL want {needed / 2**20:.0f} MiB or more "
        "(for a container: --shm-size=16g)"
    ]


BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1}
SHARDS, ADAM, HUGGINGFACE = 4, 8, 4
"""Bytes a parameter in a verl checkpoint: float32 weights, Adam's two moments, and float32 weights to load."""
MARGIN = 512 << 20
"""Bytes for logs, rollouts and Ray's own files."""


def parameters(folder: Path | None) -> int:
    """Parameters of a local model, from the size of its files; 0 where there are none."""
    size = sum(file.stat().st_size for file in weight_files(folder)) if folder else 0
    config = text_config(model_config(folder))
    return size // BYTES.get(str(config.get("dtype") or config.get("torch_dtype")), 2)


def checkpoint_bytes(recipe: Recipe) -> int:
    """Size of one checkpoint; 0 for a model that is neither here nor in the hub's cache."""
    trainer, actor, critic = recipe.trainer, recipe.worker.actor.model, recipe.worker.critic.model

    def shards(lora_rank: int) -> int:
        """Bytes a parameter of what a network needs to go on."""
        return SHARDS + (0 if trainer.save_model_only or lora_rank else ADAM)

    policy = local_model(actor.model_path)
    whole = parameters(policy)
    sizes = shape(policy) if recipe.engine == "verl" and saves_adapters_alone(recipe) else None
    sharded = sizes.adapter_parameters(actor.lora.rank) * shards(0) if sizes else whole * shards(actor.lora.rank)
    total = whole * HUGGINGFACE * trainer.save_hf_model + sharded
    if recipe.has_critic:
        total += parameters(local_model(critic.model_path or actor.model_path)) * shards(critic.lora.rank)
    return total


def check_disk(recipe: Recipe) -> list[str]:
    """Raise where the run's checkpoints will not fit; one more than is kept, since the old goes after the new came."""
    trainer, folder = recipe.trainer, resume.folder(recipe)
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(nearest).free
    one = checkpoint_bytes(recipe) if trainer.save_freq > 0 else 0
    saves = _saves_to_come(recipe)
    kept = min(saves, trainer.save_limit + 1) if trainer.save_limit > 0 else saves
    needed = kept * one + MARGIN
    if free >= needed:
        unknown = (
            "the model's size is not known before it is fetched: whether its checkpoints fit the disk is not checked"
        )
        return [] if one or not saves else [unknown]
    raise RecipeError(
        f"the disk has {_gigabytes(free)} free, but the run needs {_gigabytes(needed)}: "
        f"{kept} checkpoints of {_gigabytes(one)}, and logs",
        where=str(nearest),
        fix="make room, set ARTIFACTS_DIR or CHECKPOINT_DIR to a larger disk, or lower SAVE_LIMIT",
    )


def _saves_to_come(recipe: Recipe) -> int:
    """Saves until the end; what an earlier start saved stays, since verl forgets it when it resumes."""
    trainer = recipe.trainer
    if trainer.save_freq <= 0:
        return 0
    steps = accounting(recipe, row_count(recipe)).total_steps - resume.steps_done(recipe)
    return max(0, -(-steps // trainer.save_freq))


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.1f} GB"
