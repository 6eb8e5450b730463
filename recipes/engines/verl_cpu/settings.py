"""Which verl keys and environment variables a run on CPUs needs, from the recipe alone.

Only what a recipe has no word for is here. What it has words for (float32, no compilation, one agent worker, ...) is in
configs/hardware/cpu.yaml, where a user may change it. Nothing heavy is imported: `DRY_RUN=1` calls these functions too.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from recipes import paths
from recipes.config import Recipe
from recipes.engines.support import sampler
from recipes.model_files import model_config, text_config

PACKAGE = "recipes.engines.verl_cpu"
MEBIBYTE = 1 << 20
FLOAT32_BYTES = 4
MOST_SEQUENCES = 256
"""verl's default for the responses that vLLM decodes at once."""
SMALLEST_BUCKET = 16
SMALLEST_CACHE = 128 * MEBIBYTE
UNKNOWN_MODEL_BUCKET = 2048
"""MiB; verl's own default, for a model whose `config.json` is not on this machine."""


def keys(recipe: Recipe) -> dict[str, Any]:
    """verl's dotted keys for this recipe on CPUs.

    Args:
        recipe: `trainer.n_gpus_per_node` counts ranks here.
    """
    return {
        **_platform(),
        **(_local_ray(_ranks(recipe)) if not os.environ.get("RAY_ADDRESS") else {}),
        **_models(),
        **_rollout(recipe),
        **_few_processes(),
    }


def environment(recipe: Recipe) -> dict[str, str]:
    """Environment variables of the trainer and of every process that Ray starts for it."""
    return {
        "VERL_PLATFORM": "cpu",
        "VERL_USE_EXTERNAL_MODULES": f"{PACKAGE}.platform",
        "PYTHONPATH": paths.python_path(),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY") or "passive",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS") or str(_threads(_ranks(recipe))),
        "TORCH_COMPILE_DISABLE": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "TOKENIZERS_PARALLELISM": "false",
    }


def _ranks(recipe: Recipe) -> int:
    return int(recipe.trainer.nnodes) * int(recipe.trainer.n_gpus_per_node)


def _threads(ranks: int) -> int:
    """Threads of vLLM and of everything else but the trainer's own passes, which take all cores (`engine.py`).

    While vLLM generates, half a dozen processes feed it and read from it, so it gets half of its rank's cores. Threads
    that outnumber cores wait for one another: with all cores, generating took twice as long on two cores.
    """
    return max(1, len(os.sched_getaffinity(0)) // 2 // ranks)


def _platform() -> dict[str, Any]:
    return {
        "trainer.device": "cpu",
        "trainer.checkpoint_callback_class": "recipes.engines.checkpoint_callbacks.ExactModels",
        "actor_rollout_ref.model.external_lib": f"{PACKAGE}.engine",
        "critic.model.external_lib": f"{PACKAGE}.engine",
    }


def _local_ray(ranks: int) -> dict[str, Any]:
    """Sizes of the Ray that the trainer starts; a cluster that runs already has its own, and refuses them.

    The slots are logical: verl schedules by GPU slots alone, and its actors only wait or share the real cores.
    """
    return {
        "ray_kwargs.ray_init.num_cpus": 12 + 4 * ranks,
        "ray_kwargs.ray_init.num_gpus": ranks,
        "ray_kwargs.ray_init.include_dashboard": False,
        "ray_kwargs.ray_init.object_store_memory": 256 * MEBIBYTE,
    }


def _models() -> dict[str, Any]:
    """What models need: an attention kernel that CPUs have, no compilation, and a critic in the actor's number type."""
    keys: dict[str, Any] = {
        "actor_rollout_ref.model.override_config.attn_implementation": "sdpa",
        "actor_rollout_ref.ref.use_torch_compile": False,
        "actor_rollout_ref.ref.fsdp_config.use_torch_compile": False,
        "critic.model.override_config.attn_implementation": "sdpa",
        "critic.model.use_remove_padding": False,
        "critic.model.enable_gradient_checkpointing": False,
    }
    return keys | {f"critic.fsdp.mixed_precision.{part}_dtype": "fp32" for part in ("param", "reduce", "buffer")}


def _rollout(recipe: Recipe) -> dict[str, Any]:
    rollout = "actor_rollout_ref.rollout"
    engine = f"{rollout}.engine_kwargs.vllm"
    model = text_config(model_config(paths.ROOT / Path(recipe.worker.actor.model.model_path).expanduser()))
    return {
        f"{rollout}.free_cache_engine": False,
        f"{rollout}.enable_sleep_mode": False,
        f"{rollout}.checkpoint_engine.update_weights_bucket_megabytes": _bucket_megabytes(model),
        f"{engine}.kv_cache_memory_bytes": _cache_bytes(model, recipe),
        f"{engine}.distributed_executor_backend": "uni" if _tensor_parallel(recipe) == 1 else "mp",
    }


def _few_processes() -> dict[str, Any]:
    return {
        "transfer_queue.backend.SimpleStorage.num_data_storage_units": 1,
        **sampler(f"{PACKAGE}.rollout", "QuickReplayBuffer"),
    }


def _tensor_parallel(recipe: Recipe) -> int:
    return int(getattr(recipe.worker.rollout, "tensor_parallel_size", 1) or 1)


def _bucket_megabytes(model: dict[str, Any]) -> int:
    """Size of the buffer through which weights travel: the largest tensor, the embedding, must fit."""
    if not model:
        return UNKNOWN_MODEL_BUCKET
    widest = max(int(model.get("vocab_size", 0)), int(model.get("intermediate_size", 0)))
    embedding = widest * int(model.get("hidden_size", 0)) * FLOAT32_BYTES
    return max(SMALLEST_BUCKET, -(-embedding // MEBIBYTE) + 1)


def _cache_bytes(model: dict[str, Any], recipe: Recipe) -> int:
    """Key-value cache for as many full sequences as vLLM decodes at once, at most an eighth of the memory."""
    if not model:
        return 8 * SMALLEST_CACHE
    rollout = recipe.worker.rollout
    asked = getattr(rollout, "max_model_len", None)
    length = int(asked or recipe.data.max_prompt_length + recipe.data.max_response_length)
    heads = int(model.get("num_attention_heads", 1))
    head_dim = int(model.get("head_dim") or int(model.get("hidden_size", 0)) // heads)
    per_token = 2 * int(model.get("num_hidden_layers", 1)) * int(model.get("num_key_value_heads", heads)) * head_dim
    sequences = int(getattr(rollout, "max_num_seqs", MOST_SEQUENCES))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(SMALLEST_CACHE, min(sequences * length * per_token * FLOAT32_BYTES, memory // 8))
