"""The keys and variables that a run on CPUs needs, from the recipe alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from recipes import paths
from recipes.config import Recipe, load
from recipes.config.memory import PUBLISHED
from recipes.config.schema import leaves
from recipes.engines.verl_cpu import settings

BUCKET = "actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes"
CACHE = "actor_rollout_ref.rollout.engine_kwargs.vllm.kv_cache_memory_bytes"
EXECUTOR = "actor_rollout_ref.rollout.engine_kwargs.vllm.distributed_executor_backend"
LARGE = next(config for config in PUBLISHED.values() if "vision_config" not in config)


def recipe(model: Path | str = "", *arguments: str) -> Recipe:
    environ = {"MODEL_PATH": str(model)} if model else {}
    return load("countdown", arguments=arguments, environ=environ, hardware="cpu")


@pytest.mark.parametrize("wrap", [dict, lambda sizes: {"vision_config": None, "text_config": sizes}])
def test_buffer_and_cache_follow_the_models_sizes(tmp_path: Path, wrap) -> None:
    """The weight buffer holds the largest tensor; the cache at least one sequence; a model on a hub has defaults."""
    (tmp_path / "config.json").write_text(json.dumps(wrap(LARGE)), encoding="utf-8")
    tiny, large, unknown = (settings.keys(recipe(model)) for model in ("", tmp_path, "org/on-a-hub"))
    embedding = LARGE["vocab_size"] * LARGE["hidden_size"] * settings.FLOAT32_BYTES
    assert tiny[BUCKET] == settings.SMALLEST_BUCKET
    assert embedding < large[BUCKET] * settings.MEBIBYTE < 1.1 * embedding
    assert unknown[BUCKET] == settings.UNKNOWN_MODEL_BUCKET
    assert settings.SMALLEST_CACHE <= tiny[CACHE] < large[CACHE]


def test_ranks_are_rays_logical_gpus_and_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(16)), raising=False)
    threads = {}
    for ranks in (1, 2, 64):
        given = recipe("", f"trainer.n_gpus_per_node={ranks}", "worker.rollout.n=64")
        assert settings.keys(given)["ray_kwargs.ray_init.num_gpus"] == ranks
        threads[ranks] = settings.environment(given)["OMP_NUM_THREADS"]
    assert threads == {1: "8", 2: "4", 64: "1"}
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert settings.environment(recipe())["OMP_NUM_THREADS"] == "3"
    assert settings.keys(recipe())[EXECUTOR] == "uni"
    parallel = recipe("", "trainer.n_gpus_per_node=2", "worker.rollout.tensor_parallel_size=2")
    assert settings.keys(parallel)[EXECUTOR] == "mp"
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    assert not [name for name in settings.keys(recipe()) if name.startswith("ray_kwargs")]


def test_the_users_values_are_not_overridden() -> None:
    """Else `worker.rollout.dtype=bf16` and its like would have no effect on CPUs, and no message."""
    native = {name for leaf in leaves(Recipe).values() for name in leaf.info.verl}
    fixed = {name for name in native & set(settings.keys(recipe())) if not name.startswith("critic.")}
    # vLLM's CPU build cannot free its cache; configs/hardware/cpu.yaml has no keys of critics.
    assert fixed == {"actor_rollout_ref.rollout.free_cache_engine"}


def test_workers_find_this_package_and_what_the_user_added(monkeypatch: pytest.MonkeyPatch) -> None:
    for given in ("/somewhere", f"{paths.ROOT}:/somewhere:{paths.ROOT}"):
        monkeypatch.setenv("PYTHONPATH", given)
        assert settings.environment(recipe())["PYTHONPATH"].split(":") == [str(paths.ROOT), "/somewhere"]


def test_nothing_heavy_is_imported_to_answer() -> None:
    code = (
        "import sys; from recipes.engines.verl_cpu import settings, main; "
        "print([name for name in ('torch', 'ray', 'verl', 'vllm', 'transformers', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=paths.ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
