"""The tiny Qwen2.5-VL's training: it writes a whole model, goes on after an interruption, and overwrites nothing."""

from __future__ import annotations

import importlib.util
import json

import pytest
import typer
from typer.testing import CliRunner

from recipes.errors import RecipeError
from recipes.paths import ROOT

pytest.importorskip("torch")
pytest.importorskip("transformers")

from recipes.tasks.number_game import pretraining
from recipes.tasks.number_game.pretraining import Plan, pretrain

DATA = ROOT / "recipes" / "tasks" / "number_game" / "tiny_data"


@pytest.fixture
def call():
    """The script's command line."""
    spec = importlib.util.spec_from_file_location("pretrain_number_game", ROOT / "scripts" / "pretrain_number_game.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    application = typer.Typer()
    application.command()(script.main)
    return lambda *arguments: CliRunner().invoke(application, [str(argument) for argument in arguments])


def test_a_model_is_written_whole_and_never_overwritten(call, tmp_path):
    out = tmp_path / "model"
    arguments = ("--screenshots", DATA, "--out", out, "--steps", 2, "--batch", 2, "--judged", 2)
    done = call(*arguments)
    assert done.exit_code == 0, done.output
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["plan"]["steps"] == manifest["plan"]["reading"] == 2
    assert manifest["screenshots"]["train"]["rows"] == 90
    assert manifest["held_out"]["screenshots"] == 2
    shipped = json.loads((ROOT / "recipes/tasks/number_game/tiny/manifest.json").read_text())
    assert set(manifest["sha256"]) == set(shipped["sha256"])
    same = ("chat_template.jinja", "tokenizer.json")
    assert {name: manifest["sha256"][name] for name in same} == {name: shipped["sha256"][name] for name in same}
    assert [path.name for path in tmp_path.iterdir()] == ["model"], "nothing unfinished is left"
    again = call(*arguments)
    assert (again.exit_code, "exists" in again.output) == (2, True)


def test_an_interrupted_training_goes_on_to_the_same_weights(tmp_path, monkeypatch):
    shown = pretraining.read(DATA / "train.parquet", "train")[:9]
    plan = Plan(steps=2, reading=1, batch=2)
    whole, _, _ = pretrain(plan, shown, tmp_path / "whole")
    labelled, seen = pretraining.labelled, []

    def interrupted(*arguments):
        seen.append(arguments)
        if len(seen) == 2:
            raise KeyboardInterrupt
        return labelled(*arguments)

    monkeypatch.setattr(pretraining, "labelled", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pretrain(plan, shown, tmp_path / "parts", save_every=1)
    resumed, _, _ = pretrain(plan, shown, tmp_path / "parts", save_every=1)
    assert len(seen) == 3
    wanted = whole.state_dict()
    assert all(tensor.equal(wanted[name]) for name, tensor in resumed.state_dict().items())
    with pytest.raises(RecipeError, match="an unfinished training with other settings is in the way"):
        pretrain(Plan(steps=3, reading=1, batch=2), shown, tmp_path / "parts")
