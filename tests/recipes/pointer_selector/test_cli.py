"""Configuration and the training command end to end; a user's mistakes: one message and exit code 2."""

from __future__ import annotations

import json
from io import StringIO

import pytest
from pointer_testing import SMALL_WORKLOAD
from rich.console import Console
from typer import Typer
from typer.testing import CliRunner

from recipes.pointer_selector import PointerSelector, cli
from recipes.pointer_selector.config import resolve

SMALL = [f"workload.{name}={value}" for name, value in SMALL_WORKLOAD.items()]
SMALL += ["policy.hidden=16", "rce.epochs=1", "grpo.epochs=1", "trainer.device=cpu"]


def test_a_run_leaves_what_the_documentation_says(tmp_path, monkeypatch):
    monkeypatch.setenv("ARTIFACTS_DIR", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    run, text = tmp_path / "runs" / "pointer_selector", StringIO()
    cli.train(resolve(SMALL), Console(file=text, width=200))
    names = {"config.yaml", "data.json", "metrics.jsonl", "summary.json", "tensorboard", ".lock"}
    assert {path.name for path in run.iterdir()} == names
    assert list((run / "tensorboard").glob("events.*"))
    summary = json.loads((run / "summary.json").read_text())
    assert set(summary["test"]) == {"random", "no examples", "nearest", "mmr", "oracle", "after RCE", "best"}
    assert summary["peak_mib"] > 0
    shown = text.getvalue()
    assert all(line in shown for line in ("correct candidates", "rce 1/1", "grpo 1/1", "eval_pointer_selector.py"))
    selector = PointerSelector.from_pretrained(tmp_path / "checkpoints" / "pointer_selector", device="cpu")
    assert selector.shot_num == 4
    lines = (run / "metrics.jsonl").read_text().count("\n")
    cli.train(resolve(SMALL), Console(file=text, width=200))
    assert text.getvalue().count("rce 1/1") == shown.count("rce 1/1")  # finished: nothing is trained twice
    assert (run / "metrics.jsonl").read_text().count("\n") == lines


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
