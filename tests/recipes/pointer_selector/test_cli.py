"""The training command end to end on a small workload, and a user's mistakes: one message and exit code 2."""

from __future__ import annotations

import json
from io import StringIO

import numpy as np
import pytest
from pointer_testing import SMALL_WORKLOAD
from rich.console import Console
from typer import Typer
from typer.testing import CliRunner

from recipes.errors import RecipeError
from recipes.pointer_selector import PointerSelector, cli

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
