"""A reference is read in the format of its passes; test_images_in_passes.py computes with it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from transformers import AutoConfig

from recipes.paths import ROOT

transformer_impl = pytest.importorskip("verl.workers.engine.fsdp.transformer_impl")


@pytest.mark.parametrize("task", ["countdown", "number_game"])
@pytest.mark.parametrize("rounds_buffers", [False, True])
def test_a_reference_is_read_as_each_pass_would_round_it_and_its_buffers_are_not(monkeypatch, task, rounds_buffers):
    from recipes.engines.verl.engine import read_reference

    folder = ROOT / "recipes" / "tasks" / task / "tiny"
    build = transformer_impl.FSDPEngine._build_module
    built = []

    def engine(dtype="fp32"):
        return SimpleNamespace(
            engine_config=SimpleNamespace(model_dtype=dtype, forward_only=True, mixed_precision=None),
            model_config=SimpleNamespace(
                hf_config=AutoConfig.from_pretrained(folder), model_type="language_model", local_path=str(folder),
                trust_remote_code=False, use_liger=False, fused_kernel_options=None, use_fused_kernels=False,
                enable_gradient_checkpointing=False,
            ),
            device_mesh=None, use_remove_padding=False, ulysses_sequence_parallel_size=1,
        )  # fmt: skip

    def patch(model, **options):
        built.append(next(model.parameters()).dtype)
        if rounds_buffers and built[-1] == torch.bfloat16:
            model.register_buffer("table", torch.ones(1, dtype=torch.bfloat16))

    monkeypatch.setattr(transformer_impl, "apply_monkey_patch", patch)

    def read(given):
        return read_reference(given, lambda: build(given))

    whole = build(engine())
    found = read(engine())
    assert built == [torch.float32, torch.bfloat16, *([torch.float32] if rounds_buffers else [])]
    for (name, ours), (_, theirs) in zip(found.named_parameters(), whole.named_parameters(), strict=True):
        assert ours.dtype == torch.bfloat16, name
        assert torch.equal(ours, theirs.to(torch.bfloat16)), name
    frequencies = dict(whole.named_buffers())
    assert any("inv_freq" in name for name in frequencies)
    for name, buffer in found.named_buffers():
        assert buffer.dtype == torch.float32, name
        assert torch.equal(buffer, frequencies[name]), name
    assert next(read(engine("fp16")).parameters()).dtype == torch.float16
