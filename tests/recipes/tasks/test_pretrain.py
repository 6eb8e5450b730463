"""Pretraining: the trainer resumes exactly, the tokenizers keep any text, the shipped models are what they claim."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from recipes.errors import RecipeError
from recipes.paths import ROOT
from recipes.tasks import pretrain
from recipes.tasks.countdown import pretraining as countdown
from recipes.tasks.countdown.data import gold_response, prompt
from recipes.tasks.gsm8k import pretraining as gsm8k
from recipes.tasks.number_game.pretraining import NumberGame
from recipes.tasks.number_game.pretraining import Shape as GameShape
from recipes.tasks.pretrain import IGNORED, TextShape, chat_texts, encode, results

COUNTDOWN, GSM8K = countdown.SPEC, gsm8k.SPEC
TEXT = pytest.mark.parametrize("spec", [COUNTDOWN, GSM8K], ids=lambda spec: spec.name)
TOKENIZERS = {spec.name: spec.tokenizer() for spec in (COUNTDOWN, GSM8K)}
SHIPPED = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
FORMATS = {
    "countdown": r"<think>[^<]+</think>\n<answer>[^<]+</answer>",
    "gsm8k": r"(?:[A-Z][^\n]* \d+ [-+*/] \d+ = \d+[^\n]*\.\n){1,2}#### \d+",
}
SMALL = TextShape(hidden=32, layers=1, heads=1, kv_heads=1, intermediate=64)
PLAN = replace(COUNTDOWN.plan, examples=64, steps=6, batch=16, warmup=2, shape=SMALL)
GAME = NumberGame(ROOT / "recipes" / "tasks" / "number_game" / "tiny_data")
GAME_SHAPE = GameShape(layers=1, vision_layers=1)
GAME_PLAN = replace(GAME.plan, steps=3, glyphs=1, rows=0, rules=0, reading=1, cards=6, batch=2, shape=GAME_SHAPE)


def ids(name: str, text: str) -> list[int]:
    return TOKENIZERS[name](text, add_special_tokens=False)["input_ids"]


# The tokenizers.


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=60, deadline=None)
@given(text=st.text(max_size=60))
def test_any_text_comes_back(name, text):
    assert TOKENIZERS[name].decode(ids(name, text)) == text


@TEXT
def test_the_shipped_tokenizer_is_the_one_the_code_builds_and_chats_as_qwen(spec):
    tokenizer = TOKENIZERS[spec.name]
    assert json.loads((spec.tiny / "tokenizer.json").read_text()) == json.loads(tokenizer.backend_tokenizer.to_str())
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    assert tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    (example,) = spec.examples(spec.plan, 0, 1)
    for text in (example.prompt, example.response, gold_response("(8 - 3) * 4", "8 - 3 = 5\n144 / 12 = 12")):
        assert tokenizer.decode(ids(spec.name, text), skip_special_tokens=True) == text


def test_prompts_and_responses_are_short():
    for piece in (*map(str, range(100)), *countdown.TAGS, " + ", " - ", " * ", " / ", " = ", "(", ")", "\n"):
        assert len(ids("countdown", piece)) == 1, piece
    for piece in (*(f" {number}" for number in range(100)), " +", " -", " *", " /", " =", "####", "\n", "So", "."):
        assert len(ids("gsm8k", piece)) == 1, piece
    chats = chat_texts(TOKENIZERS["countdown"], [prompt([n, 100 - n, 7], n) for n in range(1, 100)])
    assert {len(ids("countdown", text)) for text in chats} == {37}
    for spec in (COUNTDOWN, GSM8K):
        assert max(len(ids(spec.name, one.response)) for one in spec.examples(spec.plan, 0, 500)) < spec.response


# The trainer.


@TEXT
def test_batches_ask_for_the_response_and_nothing_else(spec):
    tokenizer, drawn = TOKENIZERS[spec.name], list(spec.examples(spec.plan, 0, 32))
    batches = encode(tokenizer, drawn, "cpu", seed=0)
    for example, inputs, labels in zip(drawn, batches.inputs, batches.labels, strict=True):
        learned = labels != IGNORED
        assert tokenizer.decode(labels[learned]) == example.response + "<|im_end|>"
        inner = learned[:-1] & (labels[:-1] != tokenizer.eos_token_id)
        assert torch.equal(inputs[1:][inner], labels[:-1][inner])  # labels are the inputs, one step on
        assert example.prompt in tokenizer.decode(inputs)
    epochs = [torch.cat([batches.at(step, 8)[0] for step in range(start, start + 4)]) for start in (0, 4)]
    assert not torch.equal(*epochs)
    for epoch in epochs:
        assert sorted(map(tuple, epoch.tolist())) == sorted(map(tuple, batches.inputs.tolist()))


def test_the_learning_rate_rises_then_falls_to_a_twentieth():
    plan = replace(PLAN, steps=1000, warmup=50, lr=1e-3)
    assert plan.rate(0) == pytest.approx(2e-5)
    assert plan.rate(49) == max(map(plan.rate, range(1000))) == pytest.approx(1e-3)
    assert plan.rate(999) == pytest.approx(5e-5, rel=0.03)


def test_it_learns(tmp_path):
    losses = []
    plan = replace(PLAN, steps=50, lr=2e-2)
    pretrain.train(COUNTDOWN, plan, tmp_path, progress=lambda step, loss: losses.append(loss))
    assert losses[-1] < 3.3, losses  # an untrained model is at log(464) = 6.1


@pytest.mark.parametrize(("spec", "plan"), [(COUNTDOWN, PLAN), (GAME, GAME_PLAN)], ids=["text", "images"])
def test_an_interrupted_training_goes_on_to_the_same_weights(tmp_path, monkeypatch, spec, plan):
    whole, *_ = pretrain.train(spec, plan, tmp_path / "whole")
    losses, seen, last = spec.losses, [], plan.steps - 1

    def interrupted(*arguments):
        loss_of = losses(*arguments)

        def loss(step):
            seen.append(step)
            if step == last and seen.count(last) == 1:
                raise KeyboardInterrupt
            return loss_of(step)

        return loss

    monkeypatch.setattr(spec, "losses", interrupted, raising=False)
    with pytest.raises(KeyboardInterrupt):
        pretrain.train(spec, plan, tmp_path / "parts", save_every=1)
    parts, *_ = pretrain.train(spec, plan, tmp_path / "parts", save_every=1)
    assert seen == [*range(plan.steps), last]
    for name, weight in whole.state_dict().items():
        torch.testing.assert_close(parts.state_dict()[name], weight, msg=name)
    with pytest.raises(RecipeError, match="other settings") as error:
        pretrain.train(spec, replace(plan, seed=9), tmp_path / "parts")
    assert str(tmp_path / "parts") in str(error.value)


def test_training_stops_early_and_goes_on_later_as_if_it_had_not(tmp_path):
    whole, *_ = pretrain.train(COUNTDOWN, PLAN, tmp_path / "whole")
    early, _, seconds = pretrain.train(COUNTDOWN, PLAN, tmp_path / "parts", stop=3)
    again, _, spent = pretrain.train(COUNTDOWN, PLAN, tmp_path / "parts", stop=3)
    assert 0 < spent <= seconds
    parts, *_ = pretrain.train(COUNTDOWN, PLAN, tmp_path / "parts")
    for name, weight in early.state_dict().items():
        torch.testing.assert_close(again.state_dict()[name], weight, msg=name)
        torch.testing.assert_close(parts.state_dict()[name], whole.state_dict()[name], msg=name)
    assert not torch.equal(early.lm_head.weight, parts.lm_head.weight)


# The shipped models.


@pytest.fixture(scope="module", params=[COUNTDOWN, GSM8K], ids=lambda spec: spec.name)
def tiny(request):
    spec = request.param
    return SimpleNamespace(
        spec=spec,
        model=AutoModelForCausalLM.from_pretrained(spec.tiny, dtype=torch.float32),
        tokenizer=AutoTokenizer.from_pretrained(spec.tiny),
        manifest=json.loads((spec.tiny / "manifest.json").read_text(encoding="utf-8")),
    )


def test_the_manifest_is_true(tiny):
    folder, manifest = tiny.spec.tiny, tiny.manifest
    assert {path.name for path in folder.iterdir()} == {*SHIPPED, "manifest.json"}
    assert manifest["sha256"] == {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in SHIPPED}
    assert manifest["bytes"] == sum((folder / name).stat().st_size for name in SHIPPED) <= 6_000_000
    assert manifest["parameters"] == sum(parameter.numel() for parameter in tiny.model.parameters())
    assert re.fullmatch(r"[0-9a-f]{40}", manifest["commit"])
    assert (manifest["what"], manifest["device"] != "") == (tiny.spec.what, True)


def test_the_scripts_defaults_are_the_plan_that_made_it(tiny):
    shipped, now = dict(tiny.manifest["plan"]), tiny.spec.plan.as_dict()
    old, new = shipped.pop("settings"), now.pop("settings")
    ranges = {"sizes", "steps", "min_number", "max_number", "min_target", "max_target", "max_result"}
    assert {key: old[key] for key in ranges & old.keys()} == {key: new[key] for key in ranges & new.keys()}
    assert shipped == now
    assert tiny.manifest.get("trained_steps", tiny.spec.plan.steps) == (tiny.spec.stop or tiny.spec.plan.steps)


def test_it_is_a_qwen_that_vllm_s_cpu_attention_takes(tiny):
    config = json.loads((tiny.spec.tiny / "config.json").read_text(encoding="utf-8"))
    assert config["architectures"] == [f"{tiny.spec.architecture}ForCausalLM"]
    assert config["vocab_size"] == len(tiny.tokenizer) == tiny.model.get_input_embeddings().weight.shape[0]
    assert config.get("head_dim", config["hidden_size"] // config["num_attention_heads"]) in (32, 64)
    assert tiny.tokenizer.eos_token_id in tiny.model.generation_config.eos_token_id
    drawn = list(tiny.spec.examples(tiny.spec.plan, 0, 300))  # transformers has its own pattern for Qwen2's tokenizers
    texts = [text + one.response for one in drawn for text in chat_texts(tiny.tokenizer, [one.prompt])]
    assert tiny.tokenizer(texts).input_ids == TOKENIZERS[tiny.spec.name](texts).input_ids


def test_it_is_right_as_often_as_the_manifest_says_and_rl_has_something_to_learn(tiny):
    recorded = tiny.manifest["held_out"]
    problems = tiny.spec.held_out(tiny.spec.plan, recorded["problems"])
    greedy = results(tiny.spec, tiny.model, tiny.tokenizer, problems, sample=False)
    right = sum(each["accuracy"] for each in greedy) / len(problems)
    assert right == pytest.approx(recorded["greedy_pass@1"], abs=0.02)
    found = pretrain.assess(tiny.spec, tiny.model, tiny.tokenizer, problems[:32], samples=4)
    assert 0.2 <= found["sampled_pass@1"] <= 0.5
    assert found["mixed_groups"] >= 0.5
    texts = tiny.spec.respond(tiny.model, tiny.tokenizer, [one.prompt for one in problems[:64]], sample=True)
    assert sum(bool(re.fullmatch(FORMATS[tiny.spec.name], text)) for text in texts) / len(texts) >= 0.95
