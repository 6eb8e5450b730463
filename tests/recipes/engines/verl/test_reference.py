"""Weights that are never trained are read in the format of their passes, and have verl's numbers in less memory."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoConfig
from verl.workers.engine.fsdp import transformer_impl

from recipes.engines.verl.engine import RecipesEngine, read_weights
from recipes.paths import ROOT

TINY = ROOT / "recipes" / "tasks" / "countdown" / "tiny"


@pytest.mark.parametrize(
    ("asked", "forward_only", "lora_rank"), [("fp32", True, 0), ("fp32", False, 2), ("bf16", False, 0)]
)
def test_weights_are_read_as_a_pass_would_round_them_and_buffers_are_not(monkeypatch, asked, forward_only, lora_rank):
    """Also where verl's changes of a model have buffers in the format that it is built in. Adapters are in float32."""
    built = []
    engine = SimpleNamespace(
        engine_config=SimpleNamespace(model_dtype="fp32", forward_only=forward_only, mixed_precision=None),
        _is_lora=lora_rank > 0,
        model_config=SimpleNamespace(
            hf_config=AutoConfig.from_pretrained(TINY), model_type="language_model", local_path=str(TINY),
            trust_remote_code=False, use_liger=False, fused_kernel_options=None, use_fused_kernels=False,
            enable_gradient_checkpointing=False, lora_rank=lora_rank, lora_alpha=4, target_modules="all-linear",
            target_parameters=None, exclude_modules=None,
        ),
        device_mesh=None, use_remove_padding=False, ulysses_sequence_parallel_size=1,
    )  # fmt: skip

    def patch(model, **options):
        built.append(next(model.parameters()).dtype)
        if built[-1] == torch.bfloat16:
            model.register_buffer("table", torch.ones(1, dtype=torch.bfloat16))

    monkeypatch.setattr(transformer_impl, "apply_monkey_patch", patch)
    whole = transformer_impl.FSDPEngine._build_module(engine)
    engine.engine_config.model_dtype = asked
    found = read_weights(engine, lambda: transformer_impl.FSDPEngine._build_module(engine))
    assert built == [torch.float32, torch.bfloat16, torch.float32]
    for (name, ours), (_, theirs) in zip(found.named_parameters(), whole.named_parameters(), strict=True):
        assert torch.equal(ours, theirs.to(torch.bfloat16)), name
    frequencies = dict(whole.named_buffers())
    assert any("inv_freq" in name for name in frequencies)
    for name, buffer in found.named_buffers():
        assert torch.equal(buffer, frequencies[name]), name
    if lora_rank:
        bare = object.__new__(RecipesEngine)
        vars(bare).update(vars(engine))
        adapted = RecipesEngine._build_lora_module(bare, found)
        assert {(each.requires_grad, each.dtype) for each in adapted.parameters()} == {
            (True, torch.float32), (False, torch.bfloat16)
        }  # fmt: skip


RANK = """
import json, os, sys, threading
import torch
from tensordict import TensorDict
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from verl.utils import tensordict_utils as tu
from verl.workers.config import FSDPEngineConfig, HFModelConfig
from verl.workers.engine.fsdp import transformer_impl
from recipes.config.gpus import PACKED_ATTENTION
from recipes.engines import packed_attention
from recipes.engines.verl.engine import RecipesEngine

folder, store = sys.argv[1:]
other = os.fork()  # imported once
rank = 1 if other else 0
torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
packed_attention.register()

class OnCpu(FSDP):
    def __init__(self, module, **options):  # FSDP sends weights between GPUs only
        super().__init__(module, **{**options, "sync_module_states": False})

transformer_impl.FSDP, transformer_impl.get_device_id = OnCpu, lambda: torch.device("cpu")
pins = []

def pin(tensor):
    pins.append((tensor.nbytes, threading.current_thread() is threading.main_thread()))
    return tensor.clone()

torch.Tensor.pin_memory = pin

def batch():
    torch.manual_seed(0)
    ids = [torch.randint(8, 60, (length,)) for length in (40, 9, 30, 21)]
    columns = {
        "input_ids": ids, "position_ids": [torch.arange(len(each)) for each in ids],
        "loss_mask": [torch.ones(len(each)) for each in ids],
    }
    columns = {name: torch.nested.as_nested_tensor(rows, layout=torch.jagged) for name, rows in columns.items()}
    data = TensorDict(columns, batch_size=[len(ids)])
    settings = {"use_dynamic_bsz": True, "max_token_len_per_gpu": 64, "use_remove_padding": True}
    tu.assign_non_tensor(data, temperature=1.0, use_fused_kernels=False, compute_loss=False, **settings)
    return data

def built(kind):
    attention = {"attn_implementation": PACKED_ATTENTION}
    model = HFModelConfig(path=folder, use_remove_padding=True, override_config=attention)
    model.model_type = "language_model"
    precision = {"param_dtype": "bf16", "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
    config = FSDPEngineConfig(forward_only=True, strategy="fsdp", mixed_precision=precision, use_torch_compile=False)
    engine = kind(model, config, None, None)
    engine._build_model_optimizer()
    return engine

def passed(engine):
    return engine.infer_batch(batch(), loss_function=None)["model_output"]["log_probs"].values()

def held(engine):
    # Bytes for gradients, bytes pinned since the last question, and whether that made a pass wait.
    weights = [each._handle.flat_param for each in FSDP.fsdp_modules(engine.module) if each._handle]
    gradients = sum(getattr(each, "_cpu_grad", torch.empty(0)).nbytes for each in weights)
    found = [gradients, sum(size for size, _ in pins), any(main for _, main in pins)]
    pins.clear()
    return found

with torch.no_grad():
    verls = built(transformer_impl.FSDPEngineWithLMHead)
    before, held_by_verls = passed(verls), held(verls)
    engine = built(RecipesEngine)
    first, second = passed(engine), passed(engine)
said = json.dumps({
    "same": torch.equal(before, first), "again": torch.equal(first, second), "verls": held_by_verls,
    "ours": held(engine),
    "buffers": sorted({str(each.dtype) for each in engine.module.buffers() if each.is_floating_point()}),
})
os.write(1, f"{said}\\n".encode())  # whole, beside the other rank's
if other:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(other, 0)[1]))
"""


@pytest.mark.timeout(240)  # verl's imports: 15 s beside eight busy programs
def test_a_reference_on_two_ranks_computes_what_verls_does_in_less_memory(tmp_path):
    """Under FSDP1, as GPUs have it, without space for gradients and pinned in half the bytes; on CPUs it is FSDP2."""
    cpu = {"VERL_PLATFORM": "cpu", "VERL_USE_EXTERNAL_MODULES": "recipes.engines.cpu.platform", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", RANK, str(TINY), str(tmp_path / "store")]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **cpu}, timeout=230)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stderr.count("of the reference in") == 2
    ranks = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(ranks) == 2
    for said in ranks:
        assert said["same"]
        assert said["again"]
        weights = said["verls"][0]
        assert said["verls"] == [weights, 2 * weights, True], "FSDP's own way: float32, gradients, in the first pass"
        assert said["ours"] == [0, weights // 2, False]
        assert said["buffers"] == ["torch.float32"]
