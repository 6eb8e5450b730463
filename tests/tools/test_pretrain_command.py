"""The command of the tiny models: a loadable folder with a manifest, in a few steps, and nothing overwritten."""

from __future__ import annotations

import json
import sys

import pytest
from typer.testing import CliRunner

from recipes.paths import ROOT
from tools.tiny_models.__main__ import application

SCREENSHOTS = ROOT / "recipes" / "tasks" / "number_game" / "tiny_data"
STEPS = {"countdown": 5, "number_game": 2}
FAST = {
    "countdown": ("--device", "cpu", "--steps", STEPS["countdown"], "--examples", 80, "--batch", 8, "--hasty", 0.5),
    "number_game": ("--steps", STEPS["number_game"], "--batch", 2, "--screenshots", SCREENSHOTS),
}


@pytest.fixture(scope="module")
def call():
    return lambda *arguments: CliRunner().invoke(application(), [str(argument) for argument in arguments])


@pytest.mark.parametrize("task", FAST)
def test_a_model_is_written_whole_and_never_overwritten(call, tmp_path, monkeypatch, task):
    import transformers

    out = tmp_path / "tiny"
    monkeypatch.setattr(sys, "argv", ["__main__.py", task, "--steps", "5"])
    arguments = (task, *FAST[task], "--out", out, "--problems", 2)
    done = call(*arguments)
    assert done.exit_code == 0, done.output
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"], "the unfinished work is cleared away"
    manifest = json.loads((out / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["command"] == f"python -m tools.tiny_models {task} --steps 5"
    assert (manifest["trained_steps"], manifest["held_out"]["problems"]) == (STEPS[task], 2)
    shipped = json.loads((ROOT / "recipes" / "tasks" / task / "tiny" / "manifest.json").read_text())
    assert set(manifest["sha256"]) == set(shipped["sha256"])
    assert manifest["sha256"]["tokenizer.json"] == shipped["sha256"]["tokenizer.json"]
    if task == "countdown":
        model = transformers.AutoModelForCausalLM.from_pretrained(out)
        assert model.config.vocab_size == len(transformers.AutoTokenizer.from_pretrained(out))
    before = (out / "model.safetensors").read_bytes()
    again = call(*arguments)
    assert (again.exit_code, f"{out} exists" in again.output.replace("\n", "")) == (2, True)
    assert (out / "model.safetensors").read_bytes() == before


def test_a_larger_size_has_its_own_shape_and_rate_and_what_is_given_wins(call, tmp_path):
    out = tmp_path / "large"
    done = call("countdown", "--size", "6m", *FAST["countdown"], "--out", out, "--problems", 2)
    assert done.exit_code == 0, done.output
    plan = json.loads((out / "manifest.json").read_text(encoding="utf-8"))["plan"]
    assert (plan["shape"]["hidden"], plan["lr"], plan["steps"], plan["batch"]) == (320, 1.5e-3, STEPS["countdown"], 8)
    assert json.loads((out / "config.json").read_text(encoding="utf-8"))["hidden_size"] == 320
    wrong = call("countdown", "--size", "7b", "--out", tmp_path / "no")
    assert (wrong.exit_code, "use tiny, or one of" in wrong.output) == (2, True)
