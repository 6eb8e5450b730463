"""Configuration and the training command end to end; a user's mistakes: one message and exit code 2."""

from __future__ import annotations

import json
import re
from io import StringIO
from operator import attrgetter

import numpy as np
import pytest
from pointer_testing import SMALL_WORKLOAD
from rich.console import Console
from typer import Typer
from typer.testing import CliRunner

from recipes.errors import RecipeError
from recipes.paths import ROOT
from recipes.pointer_selector import PointerSelector, cli
from recipes.pointer_selector.config import VARIABLES, PointerRecipe, changed, resolve, to_yaml
from recipes.pointer_selector.preparation import files, prepare

SMALL = [f"workload.{name}={value}" for name, value in SMALL_WORKLOAD.items()]
SMALL += ["policy.hidden=16", "rce.epochs=1", "grpo.epochs=1", "trainer.device=cpu"]


@pytest.fixture
def train(tmp_path, monkeypatch):
    monkeypatch.setenv("ARTIFACTS_DIR", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("DRY_RUN", raising=False)

    def run(*more):
        text = StringIO()
        cli.train([*SMALL, *more], Console(file=text, width=200))
        return text.getvalue()

    return run


def test_a_run_leaves_what_the_documentation_says(train, tmp_path, monkeypatch, capsys):
    with monkeypatch.context() as patch:
        patch.setenv("DRY_RUN", "1")
        train()
    printed = capsys.readouterr().out
    assert "engine: pointer_selector" in printed
    assert "# queries: 30 train, 20 validation, 20 test" in printed
    run = tmp_path / "runs" / "pointer_selector"
    assert not run.exists()
    shown = train()
    names = {"config.yaml", "data.json", "metrics.jsonl", "summary.json", "tensorboard"}
    assert {path.name for path in run.iterdir()} == names
    assert list((run / "tensorboard").glob("events.*"))
    summary = json.loads((run / "summary.json").read_text())
    assert set(summary["test"]) == {"random", "no examples", "nearest", "mmr", "oracle", "after RCE", "best"}
    assert summary["peak_mib"] > 0
    for expected in (
        "correct candidates",
        "rce 1/1",
        "grpo 1/1",
        "after RCE",
        "REWARD_BETA",
        "eval_pointer_selector.py",
    ):
        assert expected in shown
    selector = PointerSelector.from_pretrained(tmp_path / "checkpoints" / "pointer_selector", device="cpu")
    assert selector.shot_num == 4
    lines = (run / "metrics.jsonl").read_text().count("\n")
    monkeypatch.setattr(cli, "find_spec", lambda name: None)
    again = train()
    assert "tensorboard is not installed" in again
    assert "rce 1/1" not in again  # finished: nothing is trained twice
    assert (run / "metrics.jsonl").read_text().count("\n") == lines
    with pytest.raises(RecipeError, match=r"another recipe \(grpo.lr: 0.001 -> 0.5\)"):
        train("grpo.lr=0.5")


@pytest.mark.parametrize("message", ["all rewards are equal, in query 'q0'", "cut off or malformed in or after query"])
def test_mistakes_end_with_one_message_and_code_2(tmp_path, monkeypatch, message):
    monkeypatch.setenv("ARTIFACTS_DIR", str(tmp_path / "artifacts"))
    candidates = [{"pointer": [p], "vqa_correct": p % 2, "vqa_gt_prob": 0.5} for p in range(3)]
    parts = [("q0", "train"), ("q1", "validation"), ("q2", "test")]
    content = json.dumps({name: {"split": part, "pointer_candidates": candidates} for name, part in parts})
    (tmp_path / "c.json").write_text(content[:-99] if "cut off" in message else content, encoding="utf-8")
    rows = np.random.default_rng(0).normal(size=(3, 4))
    np.savez(tmp_path / "e.npz", query_embeddings=rows, query_ids=["q0", "q1", "q2"], candidate_embeddings=rows)
    files = [f"data.candidates={tmp_path / 'c.json'}", f"data.query_embeddings={tmp_path / 'e.npz'}"]
    app = Typer()
    app.command()(cli.train_command)
    settings = ["data.shot_num=1", "validation.shots=1", "policy.hidden=8", "trainer.logger=file", "trainer.device=cpu"]
    done = CliRunner().invoke(app, [*files, *settings])
    assert done.exit_code == 2
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.output
    assert message in done.stderr


def test_the_launcher_lists_variables_with_the_recipes_values():
    launcher = (ROOT / "examples" / "pointer_selector" / "rce_grpo.sh").read_text()
    listed = re.findall(r"^#   ([A-Z_]+) +(\S+) ", launcher, re.MULTILINE)
    assert len(listed) >= 17
    keys = {variable.name: variable.key for variable in VARIABLES}
    recipe = resolve(environ={})
    for name, shown in listed:
        value = attrgetter(keys[name])(recipe)
        assert shown == ("null" if value is None else str(value)), name


def test_later_layers_win(tmp_path):
    default = resolve(environ={}).rce.epochs
    assert resolve(environ={"RCE_EPOCHS": ""}).rce.epochs == default
    assert resolve(["rce.epochs=7"], environ={"RCE_EPOCHS": "6"}).rce.epochs == 7
    assert resolve(environ={"HARDWARE": "cpu"}).trainer.device == "cpu"
    home = {"HOME": str(tmp_path)}
    assert resolve(environ=home).trainer.logger == ["console", "file", "tensorboard"]
    assert "wandb" in resolve(environ={**home, "WANDB_API_KEY": "x" * 40}).trainer.logger
    path = tmp_path / "resolved.yaml"
    recipe = resolve(["grpo.kl.beta=0.3", "validation.shots=1,2"], environ={})
    path.write_text(to_yaml(recipe), encoding="utf-8")
    assert resolve(path=path, environ={}) == recipe
    path.write_text("engine: verl\n")
    with pytest.raises(RecipeError, match="another engine"):
        resolve(path=path, environ={})


MISTAKES = {
    "unknown key grpo.learning_rate": (["grpo.learning_rate=1"], {}),
    "did you mean rce.epochs": (["rce.epoch=1"], {}),
    "did you mean RCE_EPOCHS": ([], {"RCE_EPOCH": "1"}),
    "policy.layers is 4, expected whole number, .*less than or equal to 3": ([], {"NUM_LAYERS": "4"}),
    "'3-5', a range; .*(?s:.)*RCE_EPOCHS=3, or one run for each: for value in 3 5": ([], {"RCE_EPOCHS": "3-5"}),
    "'1e-5-1e-4', a range; one run takes one value": (["rce.lr=1e-5-1e-4"], {}),
}


@pytest.mark.parametrize("message", MISTAKES)
def test_mistakes_are_named(message):
    arguments, environ = MISTAKES[message]
    with pytest.raises(RecipeError) as caught:
        resolve(arguments, environ=environ)
    assert re.search(message, str(caught.value)), str(caught.value)
    assert caught.value.where


def test_files_and_workload_fit_the_recipe(tmp_path, monkeypatch):
    with pytest.raises(RecipeError, match=r"data.query_embeddings is not set"):
        files(changed(PointerRecipe(), {"data.candidates": "/x.json"}).data)
    given = files(changed(PointerRecipe(), {"data.candidates": "/x.json", "data.query_embeddings": "/q.npz"}).data)
    assert [str(path) for path in given] == ["/x.json", "/q.npz", "/q.npz", "None"]
    monkeypatch.setenv("ARTIFACTS_DIR", str(tmp_path))
    sizes = {"train_images": 20, "validation_images": 5, "test_images": 5, "pool_size": 6, "beam": 2, "sampled": 1}
    recipe = changed(PointerRecipe(), {f"workload.{name}": value for name, value in sizes.items()})
    assert len(prepare(recipe).parts["train"]) == 20
    with pytest.raises(RecipeError, match="made with other settings"):
        prepare(changed(recipe, {"workload.label_noise": 0.5}))
    with pytest.raises(RecipeError, match="no logged sequence has 6 picks; the longest has 4"):
        prepare(changed(recipe, {"data.shot_num": 6}))
    exact = prepare(changed(recipe, {"data.shot_num": 2, "data.shot_mode": "exact", "data.train_queries": 7}))
    assert (set(exact.parts["train"].lengths), len(exact.parts["train"])) == ({2}, 7)
