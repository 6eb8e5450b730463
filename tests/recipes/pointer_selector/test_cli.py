"""The training command end to end on a small workload: folders, summary, resuming, dry run, recorders, messages."""

from __future__ import annotations

import json
from io import StringIO

import pytest
from pointer_testing import SMALL_WORKLOAD
from rich.console import Console

from recipes.errors import RecipeError
from recipes.pointer_selector import PointerSelector, cli

SMALL = [f"workload.{name}={value}" for name, value in SMALL_WORKLOAD.items()]
SMALL += [
    "policy.hidden=16",
    "rce.epochs=1",
    "grpo.epochs=1",
    "trainer.logger=console,file,tensorboard",
    "trainer.device=cpu",
]


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


def test_a_run_leaves_what_the_documentation_says(train, tmp_path):
    said = train()
    run = tmp_path / "runs" / "pointer_selector"
    assert {path.name for path in run.iterdir()} == {
        "config.yaml",
        "data.json",
        "metrics.jsonl",
        "summary.json",
        "tensorboard",
    }
    assert list((run / "tensorboard").glob("events.*"))
    summary = json.loads((run / "summary.json").read_text())
    assert set(summary["test"]) == {"random", "no examples", "nearest", "mmr", "oracle", "after RCE", "best"}
    assert summary["peak_mib"] > 0
    for expected in ("correct candidates", "rce 1/1", "grpo 1/1", "after RCE", "eval_pointer_selector.py"):
        assert expected in said
    selector = PointerSelector.from_pretrained(tmp_path / "checkpoints" / "pointer_selector", device="cpu")
    assert selector.shot_num == 4
    lines = (run / "metrics.jsonl").read_text().count("\n")
    again = train()
    assert "rce 1/1" not in again  # finished: nothing is trained twice
    assert (run / "metrics.jsonl").read_text().count("\n") == lines
    with pytest.raises(RecipeError, match=r"another recipe \(grpo.lr: 0.001 -> 0.5\)"):
        train("grpo.lr=0.5")


def test_a_dry_run_trains_nothing(train, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("DRY_RUN", "1")
    train()
    printed = capsys.readouterr().out
    assert "engine: pointer_selector" in printed
    assert "# queries: 30 train, 20 validation, 20 test" in printed
    assert "# updates: 2 an epoch, at most 4" in printed
    assert not (tmp_path / "runs").exists()


def test_a_recorder_that_is_not_installed_is_left_out(train, monkeypatch):
    monkeypatch.setattr(cli, "find_spec", lambda name: None)
    assert "tensorboard is not installed" in train()
