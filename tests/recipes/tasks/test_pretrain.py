"""Pretraining: the trainer resumes exactly, the tokenizers keep any text, the shipped models are what they claim."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from recipes.errors import RecipeError
from recipes.paths import ROOT
from recipes.tasks import pretrain
from recipes.tasks.countdown.pretraining import SPEC as COUNTDOWN
from recipes.tasks.countdown.pretraining import TAGS
from recipes.tasks.gsm8k.pretraining import SPEC as GSM8K
from recipes.tasks.number_game.pretraining import NumberGame
from recipes.tasks.pretrain import IGNORED, TextShape, chat_texts, encode, results

TEXT = pytest.mark.parametrize("spec", [COUNTDOWN, GSM8K], ids=lambda spec: spec.name)
TOKENIZERS = {spec.name: spec.tokenizer() for spec in (COUNTDOWN, GSM8K)}
FORMATS = {
    "countdown": r"<think>[^<]+</think>\n<answer>[^<]+</answer>",
    "gsm8k": r"(?:[A-Z][^\n]* \d+ [-+*/] \d+ = \d+[^\n]*\.\n){1,2}#### \d+",
}
SMALL = TextShape(hidden=32, layers=1, heads=1, kv_heads=1, intermediate=64)
PLAN = replace(COUNTDOWN.plan, examples=64, steps=6, batch=16, warmup=2, shape=SMALL)
GAME = NumberGame(ROOT / "recipes" / "tasks" / "number_game" / "tiny_data")
GAME_PLAN = replace(GAME.plan, steps=3, glyphs=1, rows=0, rules=0, reading=1, cards=6, batch=2)


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=60, deadline=None)
@given(text=st.text(max_size=60))
def test_any_text_comes_back(name, text):
    assert TOKENIZERS[name].decode(TOKENIZERS[name](text, add_special_tokens=False)["input_ids"]) == text


def test_what_the_prompts_and_responses_are_made_of_is_one_token_each():
    numbers = range(100)
    pieces = {
        "countdown": (*map(str, numbers), *TAGS, " + ", " - ", " * ", " / ", " = ", "(", ")", "\n"),
        "gsm8k": (*(f" {n}" for n in numbers), " +", " -", " *", " /", " =", "####", "\n", "So", "."),
    }
    for name, texts in pieces.items():
        assert {len(ids) for ids in TOKENIZERS[name](list(texts), add_special_tokens=False)["input_ids"]} == {1}


@TEXT
def test_batches_ask_for_the_response_and_nothing_else(spec):
    tokenizer, drawn = TOKENIZERS[spec.name], list(spec.examples(spec.plan, 0, 32))
    batches = encode(tokenizer, drawn, "cpu", seed=0)
    for example, inputs, labels in zip(drawn, batches.inputs, batches.labels, strict=True):
        learned = labels != IGNORED
        assert tokenizer.decode(labels[learned]) == example.response + "<|im_end|>"
        assert learned.sum() <= spec.response
        inner = learned[:-1] & (labels[:-1] != tokenizer.eos_token_id)
        assert torch.equal(inputs[1:][inner], labels[:-1][inner])  # labels are the inputs, one step on
        assert example.prompt in tokenizer.decode(inputs)
    epochs = [torch.cat([batches.at(step, 8)[0] for step in range(start, start + 4)]) for start in (0, 4)]
    assert not torch.equal(*epochs)
    for epoch in epochs:
        assert sorted(map(tuple, epoch.tolist())) == sorted(map(tuple, batches.inputs.tolist()))


def test_it_learns_at_a_rate_that_rises_then_falls_to_a_twentieth(tmp_path):
    plan = replace(PLAN, steps=1000, warmup=50, lr=1e-3)
    assert plan.rate(0) == pytest.approx(2e-5)
    assert plan.rate(49) == max(map(plan.rate, range(1000))) == pytest.approx(1e-3)
    assert plan.rate(999) == pytest.approx(5e-5, rel=0.03)
    losses = []
    plan = replace(PLAN, steps=50, lr=2e-2)
    pretrain.train(COUNTDOWN, plan, tmp_path, progress=lambda step, loss: losses.append(loss))
    assert losses[-1] < 3.3, losses  # an untrained model is at log(464) = 6.1


@pytest.mark.parametrize(("spec", "plan"), [(COUNTDOWN, PLAN), (GAME, GAME_PLAN)], ids=["text", "images"])
def test_an_interrupted_or_stopped_training_goes_on_to_the_same_weights(tmp_path, monkeypatch, spec, plan):
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
    _, _, seconds = pretrain.train(spec, plan, tmp_path / "parts", stop=1)
    assert 0 < pretrain.train(spec, plan, tmp_path / "parts", stop=1)[2] <= seconds, "it was there already"
    with pytest.raises(KeyboardInterrupt):
        pretrain.train(spec, plan, tmp_path / "parts", save_every=1)
    parts, *_ = pretrain.train(spec, plan, tmp_path / "parts", save_every=1)
    assert seen == [*range(plan.steps), last]
    for name, weight in whole.state_dict().items():
        torch.testing.assert_close(parts.state_dict()[name], weight, msg=name)
    with pytest.raises(RecipeError, match="other settings") as error:
        pretrain.train(spec, replace(plan, seed=9), tmp_path / "parts")
    assert str(tmp_path / "parts") in str(error.value)


@TEXT
def test_a_shipped_model_is_what_its_manifest_and_the_code_say(spec):
    folder, tokenizer = spec.tiny, TOKENIZERS[spec.name]
    manifest, config = (json.loads((folder / f"{name}.json").read_text()) for name in ("manifest", "config"))
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "manifest.json"}
    assert manifest["sha256"] == {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    assert manifest["bytes"] == sum(map(len, files.values())) <= 6_000_000
    assert re.fullmatch(r"[0-9a-f]{40}", manifest["commit"])
    shipped, plan = manifest["plan"], spec.plan.as_dict()
    old, new = shipped.pop("settings"), plan.pop("settings")
    ranges = {"sizes", "steps", "min_number", "max_number", "min_target", "max_target", "max_result"}
    assert {key: old[key] for key in ranges & old.keys()} == {key: new[key] for key in ranges & new.keys()}
    assert (shipped, manifest.get("trained_steps", plan["steps"])) == (plan, spec.stop or plan["steps"])
    assert json.loads(files["tokenizer.json"]) == json.loads(tokenizer.backend_tokenizer.to_str())
    assert config["architectures"] == [f"{spec.architecture}ForCausalLM"]
    # vLLM's CPU attention takes no smaller heads.
    assert config.get("head_dim", config["hidden_size"] // config["num_attention_heads"]) in (32, 64)

    model, loaded = (
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32),
        AutoTokenizer.from_pretrained(folder),
    )
    assert manifest["parameters"] == model.num_parameters()
    assert config["vocab_size"] == len(tokenizer) == model.get_input_embeddings().weight.shape[0]
    assert tokenizer.eos_token_id in model.generation_config.eos_token_id
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    assert loaded.apply_chat_template(chat, tokenize=False, add_generation_prompt=True) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    drawn = list(spec.examples(spec.plan, 0, 300))  # transformers has its own pattern for Qwen2's tokenizers
    texts = [text + one.response for one in drawn for text in chat_texts(tokenizer, [one.prompt])]
    assert loaded(texts).input_ids == tokenizer(texts).input_ids

    recorded = manifest["held_out"]
    problems = spec.held_out(spec.plan, recorded["problems"])
    greedy = results(spec, model, loaded, problems, sample=False)
    right = sum(each["accuracy"] for each in greedy) / len(problems)
    assert right == pytest.approx(recorded["greedy_pass@1"], abs=0.02)
    assessed = pretrain.assess(spec, model, loaded, problems[:32], samples=4)
    assert 0.2 <= assessed["sampled_pass@1"] <= 0.5
    assert assessed["mixed_groups"] >= 0.5, "RL has something to learn"
    texts = spec.respond(model, loaded, [one.prompt for one in problems[:64]], sample=True)
    assert sum(bool(re.fullmatch(FORMATS[spec.name], text)) for text in texts) / len(texts) >= 0.95
