"""verl's keys and the environment variables of a run on CPUs, from the recipe, the environment and the machine.

Only what a recipe has no key for is here. What it has keys for (float32, no CUDA graphs, ...) is in
configs/hardware/cpu.yaml, where a user may change it. Nothing heavy is imported: `DRY_RUN=1` calls these functions too.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recipes import paths
from recipes.config import Recipe
from recipes.config.gpus import PACKED_ATTENTION
from recipes.memory.shape import Shape, shape
from recipes.settings import require_resolved

PACKAGE = "recipes.engines.cpu"
SITE = Path(__file__).with_name("site")
"""Holds a module that each Python of a run imports first: vLLM's engine on a node of a cluster is a plain Python, which
reads torchvision before this package has made it readable (torchvision_operators.py)."""
ROLLOUT = "actor_rollout_ref.rollout"
VLLM = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "TORCH_COMPILE_DISABLE": "1"}
"""vLLM's variables on CPUs wherever it runs. Bound threads on busy cores waited 20 times as long as they computed."""
CACHE = {"VLLM_CPU_KVCACHE_SPACE": "1"}
"""GiB of vLLM's key-value cache; by default vLLM wants nearly all of the machine's memory."""
ONE_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}  # vLLM's engine runs in the process that calls it
SPINS = "5000"
"""Times that a thread looks for the next operation before it sleeps; waking it takes longer than a small operation.

On two cores, 32 responses of 62 tokens with gradients take 209 ms if it sleeps at once and 163 ms with 5,000; with one
core kept busy by another program 305 and 365 ms, and 1,085 ms with OpenMP's own 300,000."""
MEBIBYTE = 1 << 20
FLOAT32_BYTES = 4
SMALLEST_BUCKET = 16  # MiB of the buffer through which weights travel
UNKNOWN_MODEL_BUCKET = 2048  # MiB; verl's own default, for a model whose `config.json` is not on this machine
SMALLEST_CACHE = 128 * MEBIBYTE  # of vLLM's keys and values


def keys(recipe: Recipe) -> dict[str, Any]:
    """verl's dotted keys for this recipe on CPUs, where `trainer.n_gpus_per_node` counts ranks."""
    model = shape(paths.ROOT / Path(recipe.worker.actor.model.model_path or "").expanduser())
    parts = [f"actor_rollout_ref.{role}{place}" for role in ("actor", "ref") for place in ("", ".fsdp_config")]
    return {
        "trainer.device": "cpu",
        "trainer.checkpoint_callback_class": "recipes.engines.verl.trainer.ExactModels",
        # Logical slots of the Ray that the trainer starts: verl schedules by GPU slots alone, and its actors only wait
        # or share the real cores. `start/main.py` leaves them out where it joins a cluster.
        "ray_kwargs.ray_init.num_cpus": 12 + 4 * recipe.n_gpus,
        "ray_kwargs.ray_init.num_gpus": recipe.n_gpus,
        "ray_kwargs.ray_init.object_store_memory": 256 * MEBIBYTE,
        "actor_rollout_ref.model.external_lib": f"{PACKAGE}.engine",
        "actor_rollout_ref.model.override_config.attn_implementation": (
            PACKED_ATTENTION if recipe.worker.actor.padding_free else "sdpa"
        ),
        **dict.fromkeys([f"{part}.use_torch_compile" for part in parts], False),
        # The workers of agent loops compute the rewards themselves; verl's own need a reward process.
        "reward.num_workers": 0 if recipe.trainer.patches else 1,
        "data.dataloader_num_workers": 0,  # every worker is a process that imports torch again
        f"{ROLLOUT}.agent.num_workers": 1,  # 8 processes take minutes to start
        f"{ROLLOUT}.free_cache_engine": False,  # vLLM's CPU build cannot sleep
        f"{ROLLOUT}.enable_sleep_mode": False,
        f"{ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes": _bucket_megabytes(model),
        f"{ROLLOUT}.engine_kwargs.vllm.kv_cache_memory_bytes": _cache_bytes(model, recipe),
        f"{ROLLOUT}.engine_kwargs.vllm.distributed_executor_backend": (
            "uni" if recipe.worker.rollout.tensor_parallel_size == 1 else "mp"
        ),
        "transfer_queue.backend.SimpleStorage.num_data_storage_units": 1,
    }


def environment(recipe: Recipe, environ: Mapping[str, str]) -> dict[str, str]:
    """Environment variables of the trainer and of every process that Ray starts for it."""
    return {
        "VERL_PLATFORM": "cpu",
        "VERL_USE_EXTERNAL_MODULES": f"{PACKAGE}.platform",
        "PYTHONPATH": os.pathsep.join([paths.python_path(), str(SITE)]),
        **of_trainers(_threads(recipe.n_gpus), environ),
        "TOKENIZERS_PARALLELISM": "false",
    }


def of_trainers(threads: int, environ: Mapping[str, str]) -> dict[str, str]:
    """Environment variables of both engines' trainers."""
    return {
        **VLLM,
        **ONE_PROCESS,
        "VLLM_NO_USAGE_STATS": "1",
        "OMP_WAIT_POLICY": environ.get("OMP_WAIT_POLICY", "passive"),
        **({} if "OMP_WAIT_POLICY" in environ else {"GOMP_SPINCOUNT": environ.get("GOMP_SPINCOUNT", SPINS)}),
        "OMP_NUM_THREADS": environ.get("OMP_NUM_THREADS") or str(threads),
        "RAY_USAGE_STATS_ENABLED": "0",
    }


def _threads(ranks: int) -> int:
    """Threads of vLLM and of everything else but the trainer's own passes, which take all cores (`engine.py`).

    While vLLM generates, half a dozen processes feed it and read from it, so it gets half of its rank's cores. Threads
    that outnumber cores wait for one another: with all cores, generating took twice as long on two cores.
    """
    return max(1, len(os.sched_getaffinity(0)) // 2 // ranks)


def _bucket_megabytes(model: Shape | None) -> int:
    """Size in MiB of the buffer through which weights travel: the largest tensor, as a rule the embedding, must fit."""
    if model is None:
        return UNKNOWN_MODEL_BUCKET
    largest = max(model.vocabulary, model.intermediate) * model.hidden * FLOAT32_BYTES
    return max(SMALLEST_BUCKET, -(-largest // MEBIBYTE) + 1)


def _cache_bytes(model: Shape | None, recipe: Recipe) -> int:
    """Key-value cache for as many full sequences as vLLM decodes at once, at most an eighth of the memory."""
    if model is None:
        return 8 * SMALLEST_CACHE
    rollout = recipe.worker.rollout
    tokens = require_resolved(rollout.max_num_seqs) * recipe.longest
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(SMALLEST_CACHE, min(tokens * 2 * model.layers * model.keys * FLOAT32_BYTES, memory // 8))
