"""FSDP1's passes over screenshots on two ranks: each micro-batch has its own images; a reference has verl's numbers,
without space for gradients and pinned in half the bytes.

GPUs take this way. On CPUs the trainer shards with FSDP2, so its tests do not see it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from recipes.paths import ROOT

pytest.importorskip("verl.workers.engine.fsdp.transformer_impl")

RANK = """
import io, json, sys, threading
import pyarrow.parquet as pq
import torch
from PIL import Image
from tensordict import NonTensorStack, TensorDict
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from verl.utils import tensordict_utils as tu
from verl.workers.config import FSDPEngineConfig, HFModelConfig
from verl.workers.engine.fsdp import transformer_impl
from recipes.config.gpus import PACKED_ATTENTION
from recipes.engines import packed_attention
from recipes.engines.verl.engine import RecipesEngine

task, store, rank = sys.argv[1:]
torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=int(rank), world_size=2)
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

def ragged(rows):
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)

def batch(processor, tokens, turned=False):
    torch.manual_seed(0)
    rows = pq.read_table(f"{task}/tiny_data/train.parquet").slice(0, 6).to_pylist()
    images = [Image.open(io.BytesIO(row["images"][0]["bytes"])).convert("RGB") for row in rows]
    ids, inputs = [], []
    for number, (row, image) in enumerate(zip(rows, images)):
        image = image.transpose(Image.Transpose.ROTATE_180) if turned else image
        content = [{"type": "image"}, {"type": "text", "text": row["problem"].replace("<image>", "")}]
        message = [{"role": "user", "content": content}]
        text = processor.apply_chat_template(message, add_generation_prompt=True, tokenize=False)
        made = processor(text=[text], images=[image], return_tensors="pt")
        ids.append(torch.cat([made["input_ids"][0], torch.randint(8, 60, (5 + number,))]))
        inputs.append({name: made[name] for name in ("pixel_values", "image_grid_thw")})
    places = [torch.arange(len(each)).expand(4, -1).contiguous() for each in ids]
    columns = {"input_ids": ragged(ids), "loss_mask": ragged([torch.ones(len(each)) for each in ids])}
    columns |= {"position_ids": torch.nested.nested_tensor(places, layout=torch.jagged)}
    data = TensorDict({**columns, "multi_modal_inputs": NonTensorStack(*inputs)}, batch_size=[len(ids)])
    settings = {"use_dynamic_bsz": True, "max_token_len_per_gpu": tokens, "use_remove_padding": True}
    tu.assign_non_tensor(data, temperature=1.0, use_fused_kernels=False, compute_loss=False, **settings)
    tu.maybe_fix_3d_position_ids(data)
    return data

def built(number_type, kind=transformer_impl.FSDPEngineWithLMHead):
    model = HFModelConfig(
        path=f"{task}/tiny", use_remove_padding=True, override_config={"attn_implementation": PACKED_ATTENTION}
    )
    model.model_type = "language_model"
    precision = {"param_dtype": number_type, "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
    config = FSDPEngineConfig(forward_only=True, strategy="fsdp", mixed_precision=precision, use_torch_compile=False)
    engine = kind(model, config, None, None)
    engine._build_model_optimizer()
    return engine, model.processor

def passes(engine, processor, *tokens, **options):
    found = [engine.infer_batch(batch(processor, each, **options), loss_function=None) for each in tokens]
    return [each["model_output"]["log_probs"].values().float() for each in found]

def held(engine):
    # Bytes for gradients, bytes pinned since the last question, and whether that made a pass wait.
    weights = [each._handle.flat_param for each in FSDP.fsdp_modules(engine.module) if each._handle]
    gradients = sum(getattr(each, "_cpu_grad", torch.empty(0)).nbytes for each in weights)
    found = [gradients, sum(size for size, _ in pins), any(main for _, main in pins)]
    pins.clear()
    return found

with torch.no_grad():
    in_parts, at_once = passes(*built("fp32"), 250, 10_000)
    (turned,) = passes(*built("fp32"), 250, turned=True)
    pins.clear()
    verls, processor = built("bf16")
    (before,), held_by_verls = passes(verls, processor, 250), held(verls)
    engine, processor = built("bf16", RecipesEngine)
    first, second = passes(engine, processor, 250, 250)
far = lambda a, b: (a - b).abs().max().item()
print(json.dumps({
    "parts": far(in_parts, at_once), "turned": far(in_parts, turned), "same": torch.equal(before, first),
    "again": torch.equal(first, second), "verls": held_by_verls, "ours": held(engine),
    "buffers": sorted({str(each.dtype) for each in engine.module.buffers() if each.is_floating_point()}),
}))
"""


@pytest.mark.timeout(180)  # two interpreters import verl: 24 s beside eight busy programs
def test_micro_batches_have_their_images_and_a_reference_computes_the_same_in_less_memory(tmp_path):
    cpu = {"VERL_PLATFORM": "cpu", "VERL_USE_EXTERNAL_MODULES": "recipes.engines.cpu.platform", "OMP_NUM_THREADS": "1"}
    given = [str(ROOT / "recipes" / "tasks" / "number_game"), str(tmp_path / "store")]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": {**os.environ, **cpu}}
    ranks = [subprocess.Popen([sys.executable, "-c", RANK, *given, rank], **pipes) for rank in "01"]
    for process, (out, errors) in [(rank, rank.communicate(timeout=170)) for rank in ranks]:
        assert process.returncode == 0, errors[-2000:]
        said = json.loads(out.splitlines()[-1])
        assert said["parts"] < 1e-4, "micro-batches of few tokens and of all compute the same"
        assert said["turned"] > 1e-2, "other images, other probabilities"
        assert said["same"]
        assert said["again"]
        weights = said["verls"][0]
        assert said["verls"] == [weights, 2 * weights, True], "FSDP's own way: float32, gradients, in the first pass"
        assert said["ours"] == [0, weights // 2, False]
        assert said["buffers"] == ["torch.float32"]
        assert "of the reference in" in errors
