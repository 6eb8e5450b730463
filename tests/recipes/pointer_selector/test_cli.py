"""The training command end to end on a small workload, and a user's mistakes: one message and exit code 2."""

from __future__ import annotations

import json
import re
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
QUERIES = [f"q{number}" for number in range(12)]


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


@pytest.fixture
def command(tmp_path, monkeypatch):
    monkeypatch.setenv("ARTIFACTS_DIR", str(tmp_path / "artifacts"))
    app = Typer()
    app.command()(cli.train_command)

    def start(content, *settings, features=4, shots=1):
        text = content if isinstance(content, str) else json.dumps(content)
        (tmp_path / "c.json").write_text(text, encoding="utf-8")
        rng = np.random.default_rng(0)
        tables = {"query_embeddings": rng.normal(size=(12, 4)), "query_ids": np.array(QUERIES)}
        np.savez(tmp_path / "e.npz", **tables, candidate_embeddings=rng.normal(size=(9, features)))
        files = [f"data.candidates={tmp_path / 'c.json'}", f"data.query_embeddings={tmp_path / 'e.npz'}"]
        small = [f"data.shot_num={shots}", "validation.shots=1", "policy.hidden=8", "rce.epochs=1", "grpo.epochs=1"]
        return CliRunner().invoke(app, [*files, *small, "trainer.logger=file", "trainer.device=cpu", *settings])

    return start


def records(q4=(), **scores):
    """Twelve queries with two to four candidates each; `q4` replaces those of one, `scores` some numbers of all."""
    content = {}
    for number, name in enumerate(QUERIES):
        picks = range(number % 3 + 2)
        candidates = [{"pointer": [p], "vqa_correct": p % 2, "vqa_gt_prob": p / 10, **scores} for p in picks]
        content[name] = {
            "split": ("train", "train", "validation", "test")[number % 4],
            "pointer_candidates": candidates,
        }
    if q4:
        content["q4"]["pointer_candidates"] = list(q4)
    return content


def one(*pointer, **scores):
    return [{"pointer": list(pointer), "vqa_correct": 1, "vqa_gt_prob": 0.5, **scores}]


MISTAKES = {
    "query 'q4' needs the embedding of 99": (records(one(99)), {}),
    "query 'q0' has 4 features and the examples of its pool have 6": (records(), {"features": 6}),
    "in each of the 6 groups all rewards are equal, in query 'q0'": (records(vqa_gt_prob=0.5), {}),
}


@pytest.mark.parametrize("message", MISTAKES)
def test_mistakes_end_with_code_2(command, message):
    content, options = MISTAKES[message]
    done = command(content, **options)
    assert done.exit_code == 2
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.output
    assert re.search(message, done.stderr), done.stderr
