"""Configuration and the training command end to end; a user's mistakes: one message and exit code 2."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from io import StringIO

import pytest
import torch
from pointer_testing import SMALL_WORKLOAD, write_data
from rich.console import Console
from typer import Typer
from typer.testing import CliRunner

from recipes.errors import RecipeError
from recipes.paths import ROOT
from recipes.pointer_selector import PointerSelector, cli
from recipes.pointer_selector.config import presets, resolve
from recipes.pointer_selector.selector import load
from recipes.runs import folder
from recipes.runs.metrics import read_history

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
    assert folder.read(run).state == "finished"
    shown = text.getvalue()
    assert all(line in shown for line in ("correct candidates", "rce 1/1", "grpo 1/1", "eval_pointer_selector.py"))
    selector = PointerSelector.from_pretrained(tmp_path / "checkpoints" / "pointer_selector", device="cpu")
    assert selector.shot_num == 4
    lines = (run / "metrics.jsonl").read_text().count("\n")
    cli.train(resolve(SMALL), Console(file=text, width=200))
    assert text.getvalue().count("rce 1/1") == shown.count("rce 1/1")  # finished: nothing is trained twice
    assert (run / "metrics.jsonl").read_text().count("\n") == lines


def lines(path):
    return path.read_bytes().count(b"\n") if path.is_file() else 0


def test_a_refused_run_leaves_the_former_ones_files(tmp_path, monkeypatch):
    monkeypatch.setenv("ARTIFACTS_DIR", str(tmp_path))
    cli.train(resolve(SMALL), Console(file=StringIO()))
    run = tmp_path / "runs" / "pointer_selector"
    before = {path: path.read_bytes() for path in run.iterdir() if path.is_file()}
    with pytest.raises(RecipeError, match="grpo.lr"):
        cli.train(resolve([*SMALL, "grpo.lr=1e-5"]), Console(file=StringIO()))
    assert {path: path.read_bytes() for path in run.iterdir() if path.is_file()} == before


def test_a_run_killed_by_sigkill_goes_on_to_the_same_weights(tmp_path, monkeypatch):
    settings = [*SMALL, "data.batch_size=4", "rce.lr=1e-3", "grpo.lr=1e-3"]
    for name in ("whole", "killed"):
        monkeypatch.setenv("ARTIFACTS_DIR", str(tmp_path / name))
        history = tmp_path / name / "runs" / "pointer_selector" / "metrics.jsonl"
        if name == "killed":
            command = [sys.executable, str(ROOT / "scripts" / "train_pointer_selector.py"), *settings]
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
            while process.poll() is None and lines(history) < 14:  # in GRPO
                time.sleep(0.002)
            process.kill()
            assert process.wait() == -signal.SIGKILL
            assert lines(history) < lines(tmp_path / "whole" / "runs" / "pointer_selector" / "metrics.jsonl")
        cli.train(resolve(settings), Console(file=StringIO()))
    both = [tmp_path / name / "checkpoints" / "pointer_selector" for name in ("whole", "killed")]
    for part in ("warm_up", "best"):
        whole, killed = (load(each / part)[0].state_dict() for each in both)
        assert all(torch.equal(whole[name], killed[name]) for name in whole)
    histories = [
        read_history(tmp_path / n / "runs" / "pointer_selector" / "metrics.jsonl") for n in ("whole", "killed")
    ]
    assert histories[0] == histories[1]


@pytest.mark.parametrize("preset", presets())
def test_a_preset_trains_on_own_data(tmp_path, monkeypatch, preset):
    """Candidates have the numbers that the presets' reward reads, beam_score and vqa_correct, and no others."""
    monkeypatch.setenv("ARTIFACTS_DIR", str(tmp_path))
    path, table = write_data(tmp_path / "mine")
    records = [json.loads(line) for line in path.read_text().splitlines()]
    kept = ("pointer", "beam_score", "vqa_correct")
    for record in records:
        record["pointer_candidates"] = [{name: each[name] for name in kept} for each in record["pointer_candidates"]]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    arguments = [
        f"data.candidates={path}",
        f"data.query_embeddings={table}",
        "SHOT_NUM=2",
        "RCE_EPOCHS=2",
        "GRPO_EPOCHS=1",
    ]
    recipe, text = resolve([*arguments, "policy.hidden=16"], preset=preset), StringIO()
    cli.train(recipe, Console(file=text, width=10_000))
    command = next(line for line in text.getvalue().splitlines() if line.startswith("next: "))
    app = Typer()
    app.command()(cli.evaluate_command)
    done = CliRunner().invoke(app, command.split()[3:])  # as it is printed, candidates included
    assert done.exit_code == 0, done.output
    assert "selector - beam_score" in done.output


@pytest.mark.parametrize(
    ("argument", "environ", "message"),
    [
        ("rce.epoch=1", {}, "rce.epochs"),
        ("rce.epochs=1", {"NUM_LAYERS": "4"}, "policy.layers"),
        ("rce.epochs=1", {"RCE_EPOCHS": "3-5"}, "3-5"),
        ("data.candidates=/none.json", {}, "data.query_embeddings"),
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
