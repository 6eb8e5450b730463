"""Screenshots in the trainer's passes: they are sent, and each micro-batch has its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from recipes.paths import ROOT


@pytest.mark.timeout(120)  # verl's imports
@pytest.mark.parametrize(("processor", "images"), [(object(), ["multi_modal_inputs"]), (None, [])])
def test_a_pass_gets_tensors_and_the_images_of_a_model_that_sees(monkeypatch, processor, images):
    from recipes.engines.verl import trainer

    columns = {"input_ids": False, "multi_modal_inputs": True, "extra_fields": True}
    schema = {name: {"is_non_tensor": is_text} for name, is_text in columns.items()}
    asked = []

    def meta(first):
        asked.append(first.keys)
        return SimpleNamespace(field_schema=schema)

    monkeypatch.setattr(trainer, "kv_batch_meta2batch_meta", meta)
    batch = trainer.KVBatchMeta(keys=["a_0_0", "a_1_0"], tags=[{}, {}], partition_id="train")
    found = trainer.Trainer._without_texts(SimpleNamespace(processor=processor), batch)
    assert found.fields == ["input_ids", *images]
    assert (found.keys, asked) == (["a_0_0", "a_1_0"], [["a_0_0"]])


PASSES = """
import io, json, sys
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

task, store = sys.argv[1:]
torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
packed_attention.register()

class OnCpu(FSDP):
    def __init__(self, module, **options):  # FSDP sends weights between GPUs only
        super().__init__(module, **{**options, "sync_module_states": False})

transformer_impl.FSDP, transformer_impl.get_device_id = OnCpu, lambda: torch.device("cpu")
torch.Tensor.pin_memory = lambda tensor: tensor.clone()

def batch(processor, tokens, turned):
    torch.manual_seed(0)
    columns = {"input_ids": [], "loss_mask": [], "position_ids": []}
    inputs = []
    for row in pq.read_table(f"{task}/tiny_data/train.parquet").slice(0, 6).to_pylist():
        image = Image.open(io.BytesIO(row["images"][0]["bytes"])).convert("RGB")
        image = image.transpose(Image.Transpose.ROTATE_180) if turned else image
        content = [{"type": "image"}, {"type": "text", "text": row["problem"].replace("<image>", "")}]
        message = [{"role": "user", "content": content}]
        text = processor.apply_chat_template(message, add_generation_prompt=True, tokenize=False)
        made = processor(text=[text], images=[image], return_tensors="pt")
        ids = torch.cat([made["input_ids"][0], torch.randint(8, 60, (5 + len(inputs),))])
        columns["input_ids"].append(ids)
        columns["loss_mask"].append(torch.ones(len(ids)))
        columns["position_ids"].append(torch.arange(len(ids)).expand(4, -1).contiguous())
        inputs.append({name: made[name] for name in ("pixel_values", "image_grid_thw")})
    columns = {name: torch.nested.nested_tensor(rows, layout=torch.jagged) for name, rows in columns.items()}
    data = TensorDict({**columns, "multi_modal_inputs": NonTensorStack(*inputs)}, batch_size=[len(inputs)])
    settings = {"use_dynamic_bsz": True, "max_token_len_per_gpu": tokens, "use_remove_padding": True}
    tu.assign_non_tensor(data, temperature=1.0, use_fused_kernels=False, compute_loss=False, **settings)
    tu.maybe_fix_3d_position_ids(data)
    return data

attention = {"attn_implementation": PACKED_ATTENTION}
model = HFModelConfig(path=f"{task}/tiny", use_remove_padding=True, override_config=attention)
model.model_type = "language_model"
precision = {"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
config = FSDPEngineConfig(forward_only=True, strategy="fsdp", mixed_precision=precision, use_torch_compile=False)
engine = transformer_impl.FSDPEngineWithLMHead(model, config, None, None)
engine._build_model_optimizer()

def passed(tokens, turned=False):
    found = engine.infer_batch(batch(model.processor, tokens, turned), loss_function=None)
    return found["model_output"]["log_probs"].values()

with torch.no_grad():
    in_parts, at_once, turned = passed(250), passed(10_000), passed(250, turned=True)
far = lambda a, b: (a - b).abs().max().item()
print(json.dumps({"parts": far(in_parts, at_once), "turned": far(in_parts, turned)}))
"""


@pytest.mark.timeout(120)  # verl's imports: 15 s beside eight busy programs
def test_micro_batches_have_their_images(tmp_path):
    cpu = {"VERL_PLATFORM": "cpu", "VERL_USE_EXTERNAL_MODULES": "recipes.engines.cpu.platform", "OMP_NUM_THREADS": "1"}
    task = ROOT / "recipes" / "tasks" / "number_game"
    command = [sys.executable, "-c", PASSES, str(task), str(tmp_path / "store")]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **cpu}, timeout=110)
    assert done.returncode == 0, done.stderr[-2000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["parts"] < 1e-4, "micro-batches of few tokens and of all compute the same"
    assert said["turned"] > 1e-2, "other images, other probabilities"
