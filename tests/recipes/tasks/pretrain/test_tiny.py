"""The shipped tiny models: their manifests are true, they load, and they are right as often as the manifests say."""

from __future__ import annotations

import hashlib
import json
import re
from typing import NamedTuple

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast

from recipes.tasks.countdown import pretraining as countdown
from recipes.tasks.gsm8k import pretraining as gsm8k
from recipes.tasks.pretrain import Plan, Task, accuracies, chat_texts, respond

SHIPPED = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
PLANS = [(countdown.COUNTDOWN, countdown.PLAN), (gsm8k.GSM8K, gsm8k.PLAN)]
# What decides which problems are drawn; sizes and buckets of splits do not.
RANGES = {"sizes", "steps", "min_number", "max_number", "min_target", "max_target", "max_result"}
FORMATS = {
    "countdown": r"<think>[^<]+</think>\n<answer>[^<]+</answer>",
    "gsm8k": r"(?:[A-Z][^\n]* \d+ [-+*/] \d+ = \d+[^\n]*\.\n){1,2}#### \d+",
}


class Shipped(NamedTuple):
    task: Task
    plan: Plan
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    manifest: dict


@pytest.fixture(scope="module", params=PLANS, ids=lambda pair: pair[0].name)
def tiny(request):
    task, plan = request.param
    model = AutoModelForCausalLM.from_pretrained(task.tiny, dtype=torch.float32)
    manifest = json.loads((task.tiny / "manifest.json").read_text(encoding="utf-8"))
    return Shipped(task, plan, model, AutoTokenizer.from_pretrained(task.tiny), manifest)


def test_the_folder_is_small_and_complete(tiny):
    files = list(tiny.task.tiny.iterdir())
    assert {path.name for path in files} == {*SHIPPED, "manifest.json"}
    assert sum(path.stat().st_size for path in files) <= 6_000_000


def test_the_manifest_is_true(tiny):
    folder, manifest = tiny.task.tiny, tiny.manifest
    assert manifest["sha256"] == {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in SHIPPED}
    assert manifest["bytes"] == sum((folder / name).stat().st_size for name in SHIPPED)
    assert manifest["parameters"] == sum(parameter.numel() for parameter in tiny.model.parameters())
    assert 1_000_000 <= manifest["parameters"] <= 3_000_000
    assert re.fullmatch(r"[0-9a-f]{40}", manifest["commit"])
    assert manifest["training_seconds"] > 0
    assert manifest["device"]


def test_the_scripts_defaults_are_the_plan_that_made_it(tiny):
    shipped, now = dict(tiny.manifest["plan"]), tiny.plan.as_dict()
    old, new = shipped.pop("settings"), now.pop("settings")
    assert {key: old[key] for key in RANGES & old.keys()} == {key: new[key] for key in RANGES & new.keys()}
    assert shipped == now
    stop = {"gsm8k": gsm8k.STOP}.get(tiny.task.name, tiny.plan.steps)
    assert tiny.manifest.get("trained_steps", tiny.plan.steps) == stop


def test_it_is_a_qwen_that_vllm_s_cpu_attention_takes(tiny):
    config = json.loads((tiny.task.tiny / "config.json").read_text(encoding="utf-8"))
    assert config["architectures"] == [f"{tiny.task.architecture}ForCausalLM"]
    assert config["vocab_size"] == len(tiny.tokenizer) == tiny.model.get_input_embeddings().weight.shape[0]
    assert config["tie_word_embeddings"]
    assert config.get("head_dim", config["hidden_size"] // config["num_attention_heads"]) in (32, 64)
    assert tiny.tokenizer.eos_token_id in tiny.model.generation_config.eos_token_id
    assert tiny.model.generation_config.pad_token_id == tiny.tokenizer.pad_token_id


def test_the_tokenizer_that_transformers_loads_cuts_as_the_one_it_was_trained_with(tiny):
    drawn = list(tiny.task.examples(tiny.plan.annotators, tiny.plan.settings, 0, 300))
    texts = [text + example.response for example in drawn for text in chat_texts(tiny.tokenizer, [example.prompt])]
    assert tiny.tokenizer(texts).input_ids == tiny.task.build_tokenizer()(texts).input_ids


def test_it_is_right_as_often_as_the_manifest_says(tiny):
    recorded = tiny.manifest["held_out"]
    problems = tiny.task.held_out(tiny.plan.settings, recorded["problems"], recorded["seed"])
    responses = respond(tiny.task, tiny.model, tiny.tokenizer, problems, sample=False)
    right = accuracies(tiny.task, problems, responses)
    assert sum(right) / len(problems) == pytest.approx(recorded["greedy_pass@1"], abs=0.02)


def test_there_is_something_to_learn(tiny):
    torch.manual_seed(0)
    problems = [problem for problem in tiny.task.held_out(tiny.plan.settings, 32, 7) for _ in range(4)]
    responses = respond(tiny.task, tiny.model, tiny.tokenizer, problems, sample=True)
    right = accuracies(tiny.task, problems, responses)
    groups = [sum(right[start : start + 4]) for start in range(0, len(right), 4)]
    assert 0.2 <= sum(right) / len(right) <= 0.5
    assert sum(0 < group < 4 for group in groups) / len(groups) >= 0.5
    shaped = [bool(re.fullmatch(FORMATS[tiny.task.name], text)) for text in responses]
    assert sum(shaped) / len(shaped) >= 0.95
