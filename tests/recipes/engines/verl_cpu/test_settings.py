"""The keys and variables that a run on CPUs needs, from the recipe alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from recipes import paths
from recipes.config.schema import Recipe, leaves
from recipes.engines.verl_cpu import settings

MEBIBYTE = settings.MEBIBYTE
TINY = {
    "vocab_size": 464,
    "hidden_size": 160,
    "intermediate_size": 448,
    "num_hidden_layers": 4,
    "num_attention_heads": 5,
    "num_key_value_heads": 5,
    "head_dim": 32,
}
QWEN3_06B = {
    "vocab_size": 151936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
}


def recipe(model: Path | str = "Qwen/Qwen3-4B", *, ranks: int = 1, lora: int = 0, tensor_parallel: int = 1) -> Any:
    actor = SimpleNamespace(model=SimpleNamespace(model_path=str(model), lora=SimpleNamespace(rank=lora)))
    return SimpleNamespace(
        data=SimpleNamespace(max_prompt_length=128, max_response_length=64),
        worker=SimpleNamespace(actor=actor, rollout=SimpleNamespace(tensor_parallel_size=tensor_parallel)),
        trainer=SimpleNamespace(nnodes=1, n_gpus_per_node=ranks),
    )


@pytest.fixture
def model(tmp_path: Path) -> Any:
    def write(config: dict[str, Any]) -> Path:
        (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
        return tmp_path

    return write


def test_ranks_are_rays_logical_gpus() -> None:
    keys = settings.keys(recipe(ranks=2))

    assert keys["ray_kwargs.ray_init.num_gpus"] == 2
    assert keys["trainer.device"] == "cpu"
    assert keys["ray_kwargs.ray_init.num_cpus"] > settings.keys(recipe())["ray_kwargs.ray_init.num_cpus"]


def test_the_weight_buffer_holds_the_largest_tensor(model: Any) -> None:
    key = "actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes"
    embedding = QWEN3_06B["vocab_size"] * QWEN3_06B["hidden_size"] * 4

    assert settings.keys(recipe(model(TINY)))[key] == settings.SMALLEST_BUCKET
    assert settings.keys(recipe(model(QWEN3_06B)))[key] * MEBIBYTE > embedding
    assert settings.keys(recipe("Qwen/Qwen3-4B"))[key] == settings.UNKNOWN_MODEL_BUCKET


def test_the_cache_grows_with_the_model_and_stays_below_the_memory(model: Any) -> None:
    key = "actor_rollout_ref.rollout.engine_kwargs.vllm.kv_cache_memory_bytes"
    tiny, large = (settings.keys(recipe(model(config)))[key] for config in (TINY, QWEN3_06B))
    one_sequence = 192 * 2 * 28 * 8 * 128 * 4

    assert settings.SMALLEST_CACHE <= tiny < large
    assert large >= one_sequence


def test_vision_models_are_measured_by_their_text_part(model: Any) -> None:
    key = "actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes"

    assert settings.keys(recipe(model({"vision_config": {}, "text_config": QWEN3_06B})))[key] > 500


def test_nothing_that_a_recipe_has_a_word_for_is_taken_out_of_its_hands() -> None:
    """Else `worker.rollout.dtype=bf16` and its like would have no effect on CPUs, without a word."""
    told = {name for leaf in leaves(Recipe).values() for name in leaf.info.verl}
    fixed = {name for name in told & set(settings.keys(recipe())) if not name.startswith("critic.")}

    # vLLM's CPU build cannot free its cache; configs/hardware/cpu.yaml does not speak of critics.
    assert fixed == {"actor_rollout_ref.rollout.free_cache_engine"}


def test_tensor_parallel_engines_need_processes() -> None:
    key = "actor_rollout_ref.rollout.engine_kwargs.vllm.distributed_executor_backend"

    assert settings.keys(recipe())[key] == "uni"
    assert settings.keys(recipe(ranks=2, tensor_parallel=2))[key] == "mp"


def test_threads_never_outnumber_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(16)), raising=False)

    assert settings.environment(recipe())["OMP_NUM_THREADS"] == "8"
    assert settings.environment(recipe(ranks=4))["OMP_NUM_THREADS"] == "2"
    assert settings.environment(recipe(ranks=64))["OMP_NUM_THREADS"] == "1"
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert settings.environment(recipe())["OMP_NUM_THREADS"] == "3"


def test_workers_find_this_package_and_what_the_user_added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/somewhere")

    assert settings.environment(recipe())["PYTHONPATH"].split(":") == [str(paths.ROOT), "/somewhere"]
    monkeypatch.setenv("PYTHONPATH", f"{paths.ROOT}:/somewhere:{paths.ROOT}")
    assert settings.environment(recipe())["PYTHONPATH"].split(":") == [str(paths.ROOT), "/somewhere"], "once"


def test_nothing_heavy_is_imported_to_answer() -> None:
    code = (
        "import sys; from recipes.engines.verl_cpu import settings, main; "
        "print([name for name in ('torch', 'ray', 'verl', 'vllm', 'transformers', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=paths.ROOT, capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"
