"""The reference has no buffer for gradients, is pinned in half the bytes, and computes the same numbers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoConfig

from recipes.paths import ROOT

transformer_impl = pytest.importorskip("verl.workers.engine.fsdp.transformer_impl")

RANK = """
import json, sys, threading
import recipes
from types import SimpleNamespace
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from verl.workers.engine.fsdp import transformer_impl
from recipes.engines.verl import engine as ours

rank, ranks, store = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)

class OnCpu(FSDP):
    def __init__(self, module, **options):  # FSDP sends weights between GPUs only
        super().__init__(module, **{**options, "sync_module_states": False})

transformer_impl.FSDP, transformer_impl.get_device_id = OnCpu, lambda: torch.device("cpu")
pins = []

def pin(tensor):
    pins.append((tensor.nbytes, threading.current_thread() is threading.main_thread()))
    return tensor.clone()

torch.Tensor.pin_memory = pin

class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(64, 64)
        self.register_buffer("frequencies", torch.linspace(0, 1, 64) ** 3)
    def forward(self, x):
        return x + torch.tanh(self.linear(x * torch.cos(self.frequencies)))

def built(kind, read=lambda module, dtype: module):
    torch.manual_seed(0)
    engine = object.__new__(kind)
    mesh = torch.distributed.init_device_mesh("cpu", (ranks,))
    engine.engine_config = SimpleNamespace(
        mixed_precision=None, wrap_policy={"transformer_layer_cls_to_wrap": ["Layer"]}, strategy="fsdp",
        forward_only=True, forward_prefetch=False, use_orig_params=False, reshard_after_forward=True,
    )
    engine.model_config = SimpleNamespace(lora_rank=0, enable_activation_offload=False)
    engine.device_mesh = mesh
    module = torch.nn.Sequential(torch.nn.Embedding(40, 64), Layer(), Layer())
    return engine._build_fsdp_module(read(module, torch.bfloat16))

def computed(module):
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):  # as verl
        passes = [module(torch.arange(40).view(2, 20)).float() for _ in range(2)]
    assert torch.equal(*passes)
    buffers = {name: str(each.dtype) for name, each in module.named_buffers()}
    kept = [getattr(each._handle.flat_param, "_cpu_grad", torch.empty(0)) for each in FSDP.fsdp_modules(module)]
    gradients = sum(each.nbytes for each in kept)
    return passes[0], buffers, gradients, sum(size for size, _ in pins), any(main for _, main in pins)

found = [computed(built(transformer_impl.FSDPEngineWithLMHead))]
pins.clear()
found.append(computed(built(ours.RecipesEngine, ours.cast)))
same = torch.equal(found[0][0], found[1][0])
print(json.dumps({"same": same, "before": found[0][2:], "after": found[1][2:], "buffers": found[1][1]}))
"""


def of_two_ranks(folder) -> list[subprocess.CompletedProcess[str]]:
    def start(rank: int) -> subprocess.Popen[str]:
        given = [str(each) for each in (rank, 2, folder / "store")]
        return subprocess.Popen(
            [sys.executable, "-c", RANK, *given],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    processes = [start(rank) for rank in range(2)]
    return [
        subprocess.CompletedProcess((), process.returncode, *texts)
        for process, texts in [(process, process.communicate(timeout=170)) for process in processes]
    ]


@pytest.mark.timeout(180)  # two interpreters import verl: 24 s beside eight busy programs
def test_a_reference_computes_the_same_without_a_buffer_for_gradients(tmp_path):
    for done in of_two_ranks(tmp_path):
        assert done.returncode == 0, done.stderr[-2000:]
        said = json.loads(done.stdout.splitlines()[-1])
        weights = 4 * (40 * 64 + 2 * (64 * 64 + 64)) // 2
        assert said["same"]
        assert said["before"] == [weights, 2 * weights, True], "FSDP's own way: float32, gradients, in the first pass"
        assert said["after"] == [0, weights // 2, False]
        assert set(said["buffers"].values()) == {"torch.float32"}
        assert "of the reference in" in done.stderr


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
