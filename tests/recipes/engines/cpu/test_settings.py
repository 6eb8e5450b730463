"""The keys and variables that a run on CPUs needs, from the recipe alone."""

import json
import sys
from pathlib import Path

import pytest

from recipes.config import load
from recipes.config.gpus import PACKED_ATTENTION
from recipes.engines.cpu import settings
from recipes.memory.shape import published

BUCKET = "actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes"
CACHE = "actor_rollout_ref.rollout.engine_kwargs.vllm.kv_cache_memory_bytes"
LARGE = next(config for config in published().values() if "vision_config" not in config)


def test_buffer_and_cache_follow_the_models_sizes(tmp_path: Path) -> None:
    """The weight buffer holds the largest tensor; the cache at least one sequence."""
    (tmp_path / "config.json").write_text(json.dumps(LARGE), encoding="utf-8")
    variables: list[dict[str, str]] = [{}, {"MODEL_PATH": str(tmp_path)}]
    tiny, large = (settings.keys(load("countdown", environ=each, hardware="cpu")) for each in variables)
    embedding = LARGE["vocab_size"] * LARGE["hidden_size"] * settings.FLOAT32_BYTES
    assert embedding < large[BUCKET] * settings.MEBIBYTE < 1.1 * embedding
    assert settings.SMALLEST_CACHE <= tiny[CACHE] < large[CACHE]


def test_what_cannot_be_packed_keeps_its_padding(tmp_path: Path) -> None:
    """Packed attention is asked for with packing, and never without it."""
    for architecture, packed in (("qwen3", True), ("gpt2", False)):
        (tmp_path / "config.json").write_text(json.dumps({**LARGE, "model_type": architecture}), encoding="utf-8")
        found = load("countdown", environ={"MODEL_PATH": str(tmp_path)}, hardware="cpu")
        assert found.worker.actor.padding_free == packed
        chosen = settings.keys(found)["actor_rollout_ref.model.override_config.attn_implementation"]
        assert chosen == (PACKED_ATTENTION if packed else "sdpa")


def test_threads_wait_as_the_user_says() -> None:
    """libgomp looks at the number before the policy: the plug-in's must not undo a policy of the user's."""
    number = str(settings.SPINS)
    counted, active = {"GOMP_SPINCOUNT": "7"}, {"OMP_WAIT_POLICY": "active"}
    for given, wanted in (({}, ("passive", number)), (counted, ("passive", "7")), (active, ("active", None))):
        found = settings.of_trainers(1, given)
        assert (found["OMP_WAIT_POLICY"], found.get("GOMP_SPINCOUNT")) == wanted


@pytest.mark.parametrize(
    ("given", "added"), [([], ["--no-enable-chunked-prefill"]), (["--enable-chunked-prefill"], [])]
)
def test_a_server_takes_prompts_whole_where_nothing_else_is_said(monkeypatch, given, added):
    from vllm.entrypoints.cli import main

    from recipes.engines.cpu import vllm_distribution

    for name, value in {**settings.VLLM, **settings.CACHE}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", ["serve.py", "model", *given])
    asked = []
    monkeypatch.setattr(main, "main", lambda: asked.extend(sys.argv[1:]))
    vllm_distribution.serve()
    assert asked == ["serve", "model", *given, *added]
