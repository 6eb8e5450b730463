"""The training command end to end on a small workload: folders, summary, resuming, dry run, recorders, messages."""

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


QUERIES = [f"q{number}" for number in range(12)]


@pytest.fixture
def command(tmp_path, monkeypatch):
    monkeypatch.setenv("ARTIFACTS_DIR", str(tmp_path / "artifacts"))
    app = Typer()
    app.command()(cli.train_command)

    def start(content, *settings, features=4, shots=1):
        rng = np.random.default_rng(0)
        text = content if isinstance(content, str) else json.dumps(content)
        (tmp_path / "c.json").write_text(text, encoding="utf-8")
        np.savez(
            tmp_path / "e.npz",
            query_embeddings=rng.normal(size=(12, 4)),
            query_ids=np.array(QUERIES),
            candidate_embeddings=rng.normal(size=(9, features)),
        )
        files = [f"data.candidates={tmp_path / 'c.json'}", f"data.query_embeddings={tmp_path / 'e.npz'}"]
        small = [f"data.shot_num={shots}", "validation.shots=1", "policy.hidden=8", "rce.epochs=1", "grpo.epochs=1"]
        return CliRunner().invoke(app, [*files, *small, "trainer.logger=file", "trainer.device=cpu", *settings])

    return start


def records(**of_q4):
    content = {
        name: {
            "split": ("train", "train", "validation", "test")[number % 4],
            "pointer_candidates": [
                {"pointer": [pick], "vqa_correct": pick % 2, "vqa_gt_prob": pick / 10} for pick in range(number % 3 + 2)
            ],
        }
        for number, name in enumerate(QUERIES)
    }
    content["q4"] |= of_q4
    return content


def one(pointer, **scores):
    return [{"pointer": pointer, "vqa_correct": 1, "vqa_gt_prob": 0.5, **scores}]


MISTAKES = {
    "outside the pool": (records(pointer_candidates=one([99])), "query 'q4' needs the embedding of 99"),
    "repeated pick": (records(pointer_candidates=one([1, 1])), r"query 'q4' picks an example twice: \[1, 1\]"),
    "NaN": (records(pointer_candidates=one([1], vqa_gt_prob=float("nan"))), "vqa_gt_prob of query 'q4' is nan"),
    "truncated": (json.dumps(records())[:-200], r"cut off or malformed in or after query 'q1\d'"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_end_with_code_2(command, name):
    content, message = MISTAKES[name]
    done = command(content)
    assert done.exit_code == 2
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.output
    assert re.search(message, done.stderr), done.stderr


def test_embeddings_of_different_sizes(command):
    done = command(records(), features=6)
    assert done.exit_code == 2
    assert "query 'q0' has 4 features and the examples of its pool have 6" in done.stderr


def test_a_single_candidate_and_equal_rewards_are_counted_and_trained_past(command, tmp_path):
    done = command(records(pointer_candidates=one([1])))
    assert done.exit_code == 0, done.output
    assert "groups with equal rewards (advantage 0): 1, the first in query 'q4'" in done.output
    again = command(records(pointer_candidates=one([1])), "grpo.lr=0.5")
    assert again.exit_code == 2
    assert "belongs to another recipe (grpo.lr" in again.stderr


def test_nothing_but_equal_rewards_is_refused(command):
    content = records()
    for record in content.values():
        for candidate in record["pointer_candidates"]:
            candidate["vqa_gt_prob"] = 0.5
    done = command(content)
    assert done.exit_code == 2
    assert "in each of the 6 groups all rewards are equal, in query 'q0' for instance" in done.stderr


def test_a_checkpoint_for_another_number_of_shots(command):
    content = records()
    for record in content.values():
        record["pointer_candidates"] += [
            {"pointer": [8, pick], "vqa_correct": pick % 2, "vqa_gt_prob": pick / 10} for pick in (1, 2)
        ]
    assert command(content).exit_code == 0
    done = command(content, shots=2)
    assert done.exit_code == 2
    assert "trained for 1 shots, and this run asks for 2" in done.stderr
