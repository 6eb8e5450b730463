"""The shipped tiny model: its manifest is true, it loads, and it is right as often as the manifest says."""

from __future__ import annotations

import hashlib
import json
import re

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from recipes.tasks.countdown.buckets import bucket
from recipes.tasks.countdown.pretrain.assess import accuracies, held_out, respond
from recipes.tasks.countdown.pretrain.publish import TINY
from recipes.tasks.countdown.pretrain.train import Plan
from recipes.tasks.countdown.settings import PRESETS

MANIFEST = json.loads((TINY / "manifest.json").read_text(encoding="utf-8"))
CONFIG = json.loads((TINY / "config.json").read_text(encoding="utf-8"))
SHIPPED = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}


@pytest.fixture(scope="module")
def tiny():
    return AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32), AutoTokenizer.from_pretrained(TINY)


def test_the_folder_is_small_and_complete():
    assert {path.name for path in TINY.iterdir()} == {*SHIPPED, "manifest.json"}
    assert sum(path.stat().st_size for path in TINY.iterdir()) <= 6_000_000


def test_the_manifest_is_true(tiny):
    model, _ = tiny
    assert MANIFEST["sha256"] == {name: hashlib.sha256((TINY / name).read_bytes()).hexdigest() for name in SHIPPED}
    assert MANIFEST["bytes"] == sum((TINY / name).stat().st_size for name in SHIPPED)
    assert MANIFEST["parameters"] == sum(parameter.numel() for parameter in model.parameters())
    assert 1_000_000 <= MANIFEST["parameters"] <= 3_000_000
    assert re.fullmatch(r"[0-9a-f]{40}", MANIFEST["commit"])
    assert MANIFEST["training_seconds"] > 0
    assert MANIFEST["device"]


def test_the_script_s_defaults_are_the_plan_that_made_it():
    ranges = ("sizes", "min_number", "max_number", "min_target", "max_target")
    shipped, now = dict(MANIFEST["plan"]), Plan().as_dict()
    old, new = shipped.pop("settings"), now.pop("settings")
    assert {key: old[key] for key in ranges} == {key: new[key] for key in ranges}
    assert shipped == now


def test_it_is_a_qwen3_that_vllm_s_cpu_attention_takes(tiny):
    model, tokenizer = tiny
    assert CONFIG["architectures"] == ["Qwen3ForCausalLM"]
    assert CONFIG["vocab_size"] == len(tokenizer) == model.get_input_embeddings().weight.shape[0]
    assert CONFIG["tie_word_embeddings"]
    assert CONFIG["head_dim"] in (32, 64)
    assert tokenizer.eos_token_id in model.generation_config.eos_token_id
    assert model.generation_config.pad_token_id == tokenizer.pad_token_id


def test_held_out_problems_share_no_multiset_with_pretraining():
    assert {bucket(problem.numbers) for problem in held_out(PRESETS["tiny"], 256, seed=0)} == {"test"}


def test_it_is_right_as_often_as_the_manifest_says(tiny):
    recorded = MANIFEST["held_out"]
    problems = held_out(PRESETS["tiny"], recorded["problems"], seed=recorded["seed"])
    responses = respond(*tiny, problems, sample=False)
    assert sum(accuracies(problems, responses)) / len(problems) == pytest.approx(recorded["greedy_pass@1"], abs=0.02)


def test_there_is_something_to_learn(tiny):
    torch.manual_seed(0)
    problems = [problem for problem in held_out(PRESETS["tiny"], 32, seed=7) for _ in range(4)]
    responses = respond(*tiny, problems, sample=True)
    right = accuracies(problems, responses)
    groups = [sum(right[start : start + 4]) for start in range(0, len(right), 4)]
    assert 0.2 <= sum(right) / len(right) <= 0.5
    assert sum(0 < group < 4 for group in groups) / len(groups) >= 0.5
    shaped = [bool(re.fullmatch(r"<think>[^<]+</think>\n<answer>[^<]+</answer>", text)) for text in responses]
    assert sum(shaped) / len(shaped) >= 0.95
