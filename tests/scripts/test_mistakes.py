"""Wrong options and files: one message that names them, exit code 2, no traceback, and nothing is written."""

from __future__ import annotations

import json

import pytest

QUESTION = {"question": "A hall has 12 rows of 30 seats. How many?", "answer": "12 * 30 = <<12*30=360>>360\n#### 360"}


@pytest.fixture
def refused(script, tmp_path, monkeypatch):
    """A function that runs a script with a mistake, without Chromium and without the hub."""
    monkeypatch.chdir(tmp_path)
    for name, value in {"ARTIFACTS_DIR": str(tmp_path), "CHROMIUM": "/no/chromium", "HF_HUB_OFFLINE": "1"}.items():
        monkeypatch.setenv(name, value)

    def check(name, arguments, message):
        done = script(name)(*arguments)
        assert done.exit_code == 2, done.output
        assert "error: " in done.output
        assert message in done.output
        assert "Traceback" not in done.output
        assert not list(tmp_path.rglob("*.parquet"))

    return check


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("data_prep_countdown", ["--preset", "large"], "no preset 'large'"),
        ("data_prep_countdown", ["--sizes", "3;4"], "not a list of numbers"),
        ("data_prep_countdown", ["--max_number", "2", "--sizes", "2", "--train_size", "500"], "no further problem"),
        ("data_prep_countdown", ["--source", "hub", "--hub_path", "nowhere.parquet"], "nowhere.parquet"),
        ("data_prep_gsm8k", ["--train_size", "5"], "train_size with the data set itself"),
        ("data_prep_gsm8k", ["--preset", "tiny", "--train_size", 9, "--tokenizer", "./nowhere"], "not a tokenizer"),
        ("data_prep_number_game", [], "apt-get install chromium"),
        ("data_prep_number_game", ["--source", "hub", "--hub_path", "/does/not/exist"], "has no train*.parquet"),
        ("data_prep_number_game", ["--reward_path", "none.py"], "there is no reward file none.py"),
        ("compare_configs", ["countdown", "--against", "easyr1:3bb"], "unknown official example"),
    ],
)
def test_wrong_options(refused, name, arguments, message):
    refused(name, arguments, message)


def test_wrong_lines_of_gsm8k(refused, tmp_path):
    (tmp_path / "test.jsonl").write_text(json.dumps({"question": "How much is 2 + 2?", "answer": "#### 4"}) + "\n")
    for line, message in {
        '{"question": "How many?"}': "train.jsonl, line 2",
        '{"question": "How many?", "answer": "four"}': "no number behind ####",
        json.dumps(QUESTION): "train row 1 repeats",
    }.items():
        (tmp_path / "train.jsonl").write_text(f"{json.dumps(QUESTION)}\n{line}\n")
        refused("data_prep_gsm8k", ["--source", "."], message)
