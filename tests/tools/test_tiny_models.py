"""Pretraining: the trainer resumes exactly, the tokenizers keep any text, the shipped models are what they claim."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import replace
from itertools import islice

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from recipes.data.rewards import load_reward
from recipes.errors import RecipeError
from recipes.paths import ROOT
from recipes.tasks.countdown.problems import bucket
from recipes.tasks.countdown.rows import ground_truth
from recipes.tasks.gsm8k.problems import TINY, word_problems
from tools.tiny_models import pretrain
from tools.tiny_models.countdown import SPEC as COUNTDOWN
from tools.tiny_models.gsm8k import SPEC as GSM8K
from tools.tiny_models.number_game import NumberGame
from tools.tiny_models.pretrain import IGNORED, results
from tools.tiny_models.text_models import TextShape, chat_texts, encode

TEXT = pytest.mark.parametrize("spec", [COUNTDOWN, GSM8K], ids=lambda spec: spec.name)
TOKENIZERS = {spec.name: spec.tokenizer() for spec in (COUNTDOWN, GSM8K)}
SCORES = {name: load_reward(f"reward_functions/{name}.py").compute_score for name in TOKENIZERS}
NUMBERS = r"Make (\d+) from the numbers (\d+), (\d+), (\d+)\."
SMALL = TextShape(hidden=32, layers=1, heads=1, kv_heads=1, intermediate=64)
PLAN = replace(COUNTDOWN.plan, examples=64, steps=6, batch=16, warmup=2, shape=SMALL)
GAME = NumberGame(ROOT / "recipes" / "tasks" / "number_game" / "tiny_data")
GAME_PLAN = replace(GAME.plan, steps=3, glyphs=1, rows=0, rules=0, reading=1, cards=6, batch=2)


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=60, deadline=None)
@given(text=st.text(max_size=60))
def test_any_text_comes_back(name, text):
    assert TOKENIZERS[name].decode(TOKENIZERS[name](text, add_special_tokens=False)["input_ids"]) == text


@TEXT
def test_demonstrations_are_right_as_often_as_the_plan_says(spec):
    """Also that they have the form, calculate rightly, and are of the pretraining bucket alone."""
    drawn = list(spec.examples(spec.plan, 3, 1000))
    if spec is COUNTDOWN:
        problems = [map(int, re.match(NUMBERS, example.prompt).groups()) for example in drawn]
        problems = [(numbers, ground_truth(numbers, target)) for target, *numbers in problems]
        assert {bucket(numbers) for numbers, _ in problems} == {"pretrain"}
    else:
        words = list(islice(word_problems(TINY, ("pretrain",), seed=3), 1000))
        problems = [(problem.question, str(problem.gold)) for problem in words]
        assert all(example.prompt.startswith(problem.question) for example, problem in zip(drawn, words, strict=True))
    right = 0.0
    for example, (_, truth) in zip(drawn, problems, strict=True):
        result = SCORES[spec.name](spec.name, example.response, truth)
        assert result["format"] == 1.0, example
        right += result["accuracy"]
        for step, value in re.findall(r"(\d+ [-+*/] \d+) = (\d+)", example.response) if spec is GSM8K else ():
            assert eval(step) == int(value), example
    assert right / len(drawn) == pytest.approx(0.42, abs=0.07)
    assert drawn[:20] == list(spec.examples(spec.plan, 3, 20)) != list(spec.examples(spec.plan, 6, 20))


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
    shipped, plan = manifest["plan"], spec.plan.as_dict()
    old, new = shipped.pop("settings"), plan.pop("settings")
    ranges = {"sizes", "steps", "min_number", "max_number", "min_target", "max_target", "max_result"}
    assert {key: old[key] for key in ranges & old.keys()} == {key: new[key] for key in ranges & new.keys()}
    assert shipped == plan
    assert json.loads(files["tokenizer.json"]) == json.loads(tokenizer.backend_tokenizer.to_str())
    # vLLM's CPU attention takes no smaller heads.
    assert config.get("head_dim", config["hidden_size"] // config["num_attention_heads"]) in (32, 64)

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    loaded = AutoTokenizer.from_pretrained(folder)
    assert manifest["parameters"] == model.num_parameters()
    assert config["vocab_size"] == len(tokenizer) == model.get_input_embeddings().weight.shape[0]
    assert tokenizer.eos_token_id in model.generation_config.eos_token_id
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
