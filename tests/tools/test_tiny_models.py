"""The tiny models: what ships is what the code makes, demonstrations are as right as they should be, a run goes on."""

import hashlib
import json
import re
import sys
from itertools import islice

import pytest
import torch
import typer
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from recipes.paths import ROOT
from recipes.rewards.loading import load_reward
from recipes.tasks.countdown.problems import bucket, ground_truth
from recipes.tasks.gsm8k.problems import word_problems
from tests.reward_functions.sandboxes import needs_sandbox
from tools.tiny_models import pretrain
from tools.tiny_models.__main__ import main
from tools.tiny_models.countdown import Countdown
from tools.tiny_models.custom import Custom
from tools.tiny_models.gsm8k import GSM8K
from tools.tiny_models.text import chats, dataset

pytestmark = pytest.mark.timeout(240)  # demonstrations of whole pools: 10 s, and 60 beside six busy processes

TEXTS = [Countdown(), GSM8K(), Custom()]
TEXT = pytest.mark.parametrize("task", TEXTS, ids=lambda task: task.name)
TOKENIZERS = {task.name: task.tokenizer() for task in TEXTS}
SCREENSHOTS = ROOT / "recipes" / "tasks" / "number_game" / "tiny_data"
NUMBERS = r"Make (\d+) from the numbers (\d+), (\d+), (\d+)\."


@pytest.mark.parametrize("task", TEXTS[:2], ids=lambda task: task.name)
def test_demonstrations_have_the_form_and_are_right_in_two_of_five(task):
    """Also that they calculate rightly, and are of the pretraining bucket alone."""
    drawn = list(islice(task.examples(3), 1000))
    if isinstance(task, Countdown):
        found = [map(int, re.match(NUMBERS, example.prompt).groups()) for example in drawn]
        problems = [(numbers, ground_truth(numbers, target)) for target, *numbers in found]
        assert {bucket(numbers) for numbers, _ in problems} == {"pretrain"}
    else:
        words = islice(word_problems(("pretrain",), seed=3), 1000)
        problems = [(problem.question, str(problem.gold)) for problem in words]
    score, right = load_reward(f"reward_functions/{task.reward}.py").compute_score, 0.0
    for example, (_, truth) in zip(drawn, problems, strict=True):
        result = score(task.name, example.response, truth)
        assert result["format"] == 1.0, example
        right += result["accuracy"]
        for step, value in re.findall(r"(\d+ [-+*/] \d+) = (\d+)", example.response) if task.name == "gsm8k" else ():
            assert eval(step) == int(value), example
    assert right / len(drawn) == pytest.approx(0.42, abs=0.07)
    assert drawn[:20] == list(islice(task.examples(3), 20)) != list(islice(task.examples(6), 20))


@pytest.mark.parametrize("task", [*TEXTS[:2], pytest.param(TEXTS[2], marks=needs_sandbox)], ids=lambda task: task.name)
def test_a_shipped_model_is_what_its_manifest_and_the_code_say(task):
    folder, tokenizer = task.shipped, TOKENIZERS[task.name]
    manifest, config = (json.loads((folder / f"{name}.json").read_text()) for name in ("manifest", "config"))
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "manifest.json"}
    assert manifest["sha256"] == {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    assert json.loads(files["tokenizer.json"]) == json.loads(tokenizer.backend_tokenizer.to_str())
    made, _ = task.build()
    sizes = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")
    assert {name: config[name] for name in sizes} == {name: getattr(made.config, name) for name in sizes}
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    loaded = AutoTokenizer.from_pretrained(folder)
    assert manifest["parameters"] == model.num_parameters() == made.num_parameters()
    drawn = list(islice(task.examples(0), 300))  # transformers has its own pattern for Qwen2's tokenizers
    texts = [text + one.response for one in drawn for text in chats(tokenizer, [one.prompt])]
    assert loaded(texts).input_ids == tokenizer(texts).input_ids
    for one, row in zip(drawn, dataset(tokenizer, drawn), strict=True):
        learned = [label for label in row["labels"] if label != pretrain.IGNORED]
        assert (tokenizer.decode(learned), len(learned) <= task.response) == (one.response + "<|im_end|>", True)

    assessed = pretrain.assess(task, model, loaded, 24)
    assert assessed["greedy_pass@1"] == pytest.approx(manifest["held_out"]["greedy_pass@1"], abs=0.2)
    assert 0.15 <= assessed["sampled_pass@1"] <= 0.65
    assert assessed["mixed_groups"] >= 0.4, "RL has something to learn"


@pytest.mark.parametrize("name", ["custom", "number_game"])
def test_a_model_is_written_whole_and_never_overwritten(tmp_path, monkeypatch, name):
    monkeypatch.setattr(Custom, "batch", 8)
    arguments = [name, "--share", "0.001", "--problems", "2", "--out", str(tmp_path / "tiny")]
    arguments += ["--screenshots", str(SCREENSHOTS)] if name == "number_game" else []
    app = typer.Typer()
    app.command()(main)
    monkeypatch.setattr(sys, "argv", ["__main__.py", *arguments])
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    manifest = json.loads((tmp_path / "tiny" / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["held_out"]["problems"] == 2
    shipped = json.loads((ROOT / "recipes" / "tasks" / name / "tiny" / "manifest.json").read_text())
    assert manifest["sha256"]["tokenizer.json"] == shipped["sha256"]["tokenizer.json"]
    before = (tmp_path / "tiny" / "model.safetensors").read_bytes()
    assert CliRunner().invoke(app, arguments).exit_code == 2
    assert (tmp_path / "tiny" / "model.safetensors").read_bytes() == before
