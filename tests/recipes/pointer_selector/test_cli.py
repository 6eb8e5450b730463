"""Configuration and the training command end to end; a user's mistakes: one message and exit code 2."""

from __future__ import annotations

import json
from io import StringIO

import pytest
from pointer_testing import SMALL_WORKLOAD
from rich.console import Console
from typer import Typer
from typer.testing import CliRunner

from recipes.errors import RecipeError
from recipes.pointer_selector import PointerSelector, cli
from recipes.pointer_selector.config import changed, resolve, to_yaml
from recipes.pointer_selector.preparation import prepare

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
    run = tmp_path / "runs" / "pointer_selector"
    assert not run.exists()
    shown = train()
    names = {"config.yaml", "data.json", "metrics.jsonl", "summary.json", "tensorboard"}
    assert {path.name for path in run.iterdir()} == names
    assert list((run / "tensorboard").glob("events.*"))
    summary = json.loads((run / "summary.json").read_text())
    assert set(summary["test"]) == {"random", "no examples", "nearest", "mmr", "oracle", "after RCE", "best"}
    assert summary["peak_mib"] > 0
    assert all(line in shown for line in ("correct candidates", "rce 1/1", "grpo 1/1", "eval_pointer_selector.py"))
    selector = PointerSelector.from_pretrained(tmp_path / "checkpoints" / "pointer_selector", device="cpu")
    assert selector.shot_num == 4
    lines = (run / "metrics.jsonl").read_text().count("\n")
    again = train()
    assert "rce 1/1" not in again  # finished: nothing is trained twice
    assert (run / "metrics.jsonl").read_text().count("\n") == lines


def test_later_layers_win(tmp_path):
    assert resolve(["rce.epochs=7"], environ={"RCE_EPOCHS": "6"}).rce.epochs == 7
    path = tmp_path / "resolved.yaml"
    recipe = resolve(["grpo.kl.beta=0.3", "validation.shots=1,2"], environ={})
    path.write_text(to_yaml(recipe), encoding="utf-8")
    assert resolve(path=path, environ={}) == recipe
    path.write_text("engine: verl\n")
    with pytest.raises(RecipeError, match="another engine"):
        resolve(path=path, environ={})


@pytest.mark.parametrize(
    ("argument", "environ", "message"),
    [
        ("rce.epoch=1", {}, "did you mean rce.epochs"),
        ("rce.epochs=1", {"NUM_LAYERS": "4"}, "policy.layers is 4, expected whole number"),
        ("rce.epochs=1", {"RCE_EPOCHS": "3-5"}, "'3-5', a range"),
        ("data.candidates=/none.json", {}, "data.query_embeddings is not set"),
    ],
)
def test_mistakes_end_with_one_message_and_code_2(tmp_path, monkeypatch, argument, environ, message):
    for name, value in ({"ARTIFACTS_DIR": str(tmp_path)} | environ).items():
        monkeypatch.setenv(name, value)
    app = Typer()
    app.command()(cli.train_command)
    done = CliRunner().invoke(app, [argument])
    assert done.exit_code == 2
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.output
    assert message in done.stderr


def test_a_workload_made_with_other_settings_is_not_taken(tmp_path, monkeypatch):
    monkeypatch.setenv("ARTIFACTS_DIR", str(tmp_path))
    recipe = resolve(SMALL, environ={})
    assert len(prepare(recipe).parts["train"]) == 30
    with pytest.raises(RecipeError, match="made with other settings"):
        prepare(changed(recipe, {"workload.label_noise": 0.5}))
    exact = prepare(changed(recipe, {"data.shot_num": 2, "data.shot_mode": "exact", "data.train_queries": 7}))
    assert (set(exact.parts["train"].lengths), len(exact.parts["train"])) == ({2}, 7)
