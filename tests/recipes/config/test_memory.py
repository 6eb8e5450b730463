"""Tokens of a pass: what was measured on a GPU, and what must hold for every size."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipes.config import gpus, load, machine, memory
from recipes.errors import RecipeError

QWEN3_4B = {
    "model_type": "qwen3",
    "vocab_size": 151_936,
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "tie_word_embeddings": True,
}
H200, H100 = 143_771 << 20, 81_559 << 20


def test_bytes_a_token_are_those_measured_on_an_h200():
    """Peaks in GB, less weights and gradients: 70.6 at 8,192 tokens and 125.2 at 20,480; 39.7 at 16,384 and 45.0 at
    32,768 with recomputation."""
    shape = memory.shape_of(QWEN3_4B)
    assert shape.parameters == pytest.approx(4.022e9, rel=1e-3)
    assert shape.activations(recompute=False) == pytest.approx((125.2e9 - 70.6e9) / (20_480 - 8_192), rel=0.02)
    assert shape.activations(recompute=True) == pytest.approx((45.0e9 - 39.7e9) / (32_768 - 16_384), rel=0.02)


@given(
    memory_size=st.integers(8, 200),
    ranks=st.sampled_from([1, 2, 4, 8, 64]),
    longest=st.integers(16, 20_000),
    networks=st.sampled_from([1, 2]),
    asked=st.sampled_from([None, True, False]),
)
def test_passes_hold_the_longest_sequence_and_grow_with_the_memory(memory_size, ranks, longest, networks, asked):
    shape, options = memory.shape_of(QWEN3_4B), {"longest": longest, "networks": networks}
    small, large, shared = (
        memory.token_budgets(shape, size * memory.GIGABYTE, ranks=r, recompute=asked, **options)
        for size, r in ((memory_size, ranks), (memory_size + 40, ranks), (memory_size, 2 * ranks))
    )
    for found in (small, large, shared):
        assert found.update >= longest
        assert found.forward >= longest
        assert asked is None or found.recompute == asked
    assert large.recompute <= small.recompute
    assert shared.recompute <= small.recompute
    if large.recompute == small.recompute:
        assert large.update >= small.update
    state = networks * 16 * shape.parameters / ranks
    need = state + small.update * shape.activations(small.recompute)
    assert small.update == longest or need < memory.USABLE_FRACTION * memory_size * memory.GIGABYTE


def test_graph_sizes_rise_to_the_most():
    for most in (256, 320, 1_024, 1_000, 7):
        sizes = memory.graph_sizes(most)
        assert sizes == sorted(set(sizes))
        assert sizes[-1] == most


@pytest.fixture
def on_gpus(monkeypatch, tmp_path):
    """`on_gpus(memory, *arguments, **environ)`: Countdown with a Qwen3-4B shape on GPUs of so many bytes."""
    monkeypatch.setattr(gpus, "lacks_liger", lambda *_: False)

    def build(size, *arguments, config=QWEN3_4B, **environ):
        monkeypatch.setattr(machine, "gpu_memory", lambda: size)
        (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
        return load("countdown", arguments=arguments, environ={"MODEL_PATH": str(tmp_path), **environ}, hardware="gpu")

    return build


def test_the_recipe_takes_what_fits_unless_somebody_decides(on_gpus):
    actor = on_gpus(H200, GPUS_PER_NODE="1").worker.actor
    assert not actor.model.enable_gradient_checkpointing
    assert 12_000 < actor.max_token_len_per_device < 16_000
    assert actor.max_token_len_per_device_for_experience == memory.MAX_FORWARD_TOKENS
    actor = on_gpus(H100, GPUS_PER_NODE="1").worker.actor
    assert actor.model.enable_gradient_checkpointing
    small = on_gpus(H200, MICRO_BATCH_SIZE="2").worker.actor
    assert small.max_token_len_per_device is None, "who states the responses of a pass means it"
    given_ = on_gpus(H200, "worker.actor.max_token_len_per_device=4096", "worker.rollout.max_num_seqs=77")
    assert given_.worker.actor.max_token_len_per_device == 4096
    assert given_.worker.actor.max_token_len_per_device_for_experience == 4096
    assert given_.worker.rollout.max_num_seqs == 77
    assert on_gpus(H200, GPUS_PER_NODE="1").worker.rollout.max_num_seqs == 1_024
    unknown = on_gpus(None).worker.actor
    assert unknown.model.enable_gradient_checkpointing
    assert unknown.max_token_len_per_device == memory.TOKENS_OF_UNKNOWN_MODEL


@pytest.mark.parametrize("config", [{}, {"model_type": "qwen3"}, {**QWEN3_4B, "num_experts": 8}, []])
def test_a_shape_that_is_not_known_is_recomputed(on_gpus, config):
    actor = on_gpus(H200, config=config).worker.actor
    assert actor.model.enable_gradient_checkpointing
    assert actor.max_token_len_per_device == memory.TOKENS_OF_UNKNOWN_MODEL


def test_the_fused_head_is_for_widths_that_its_kernel_takes(on_gpus):
    assert on_gpus(H200).worker.actor.use_fused_kernels
    narrow = on_gpus(H200, config={**QWEN3_4B, "hidden_size": 160})
    assert not narrow.worker.actor.use_fused_kernels
    assert "128 divides" in narrow.source_of("worker.actor.use_fused_kernels").where


def test_mistyped_sizes_are_the_users_mistake(on_gpus):
    for wrong in ("trainer.nnodes=two", "worker.rollout.tensor_parallel_size=0"):
        with pytest.raises(RecipeError, match=wrong.split("=")[0]):
            on_gpus(H200, wrong)
