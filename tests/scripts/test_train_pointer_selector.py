"""The training command: a user's mistake is one message with the query's id and exit code 2."""

from __future__ import annotations

import importlib.util
import json
import re

import numpy as np
import pytest
from typer import Typer
from typer.testing import CliRunner

from recipes.paths import ROOT

_spec = importlib.util.spec_from_file_location("train_pointer_selector", ROOT / "scripts/train_pointer_selector.py")
script = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(script)

QUERIES = [f"q{number}" for number in range(12)]


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("ARTIFACTS_DIR", str(tmp_path / "artifacts"))
    app = Typer()
    app.command()(script.main)

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
def test_mistakes_end_with_code_2(run, name):
    content, message = MISTAKES[name]
    done = run(content)
    assert done.exit_code == 2
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.output
    assert re.search(message, done.stderr), done.stderr


def test_embeddings_of_different_sizes(run):
    done = run(records(), features=6)
    assert done.exit_code == 2
    assert "query 'q0' has 4 features and the examples of its pool have 6" in done.stderr


def test_a_single_candidate_and_equal_rewards_are_counted_and_trained_past(run, tmp_path):
    done = run(records(pointer_candidates=one([1])))
    assert done.exit_code == 0, done.output
    assert "groups with equal rewards (advantage 0): 1, the first in query 'q4'" in done.output
    again = run(records(pointer_candidates=one([1])), "grpo.lr=0.5")
    assert again.exit_code == 2
    assert "belongs to another recipe (grpo.lr" in again.stderr


def test_nothing_but_equal_rewards_is_refused(run):
    content = records()
    for record in content.values():
        for candidate in record["pointer_candidates"]:
            candidate["vqa_gt_prob"] = 0.5
    done = run(content)
    assert done.exit_code == 2
    assert "in each of the 6 groups all rewards are equal, in query 'q0' for instance" in done.stderr


def test_a_checkpoint_for_another_number_of_shots(run):
    content = records()
    for record in content.values():
        record["pointer_candidates"] += [
            {"pointer": [8, pick], "vqa_correct": pick % 2, "vqa_gt_prob": pick / 10} for pick in (1, 2)
        ]
    assert run(content).exit_code == 0
    done = run(content, shots=2)
    assert done.exit_code == 2
    assert "trained for 1 shots, and this run asks for 2" in done.stderr
