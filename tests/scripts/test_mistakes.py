"""Wrong options and files: one message that names them, exit code 2, no traceback, and nothing is written."""

from __future__ import annotations

import json

import pytest

REWARD = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return {"score": 1.0, "accuracy": 1.0, "reason": "correct"}
"""
QUESTION = {"question": "A hall has 12 rows of 30 seats. How many?", "answer": "12 * 30 = <<12*30=360>>360\n#### 360"}
OPTIONS = {
    "data_prep_countdown": [
        (["--preset", "large"], "no preset 'large'"),
        (["--sizes", "3;4"], "not a list of numbers"),
        (["--max_target", "0"], "max_target=0"),
        (["--max_number", "2", "--sizes", "2", "--train_size", "500"], "no further problem"),
        (["--source", "hub", "--hub_path", "nowhere.parquet"], "nowhere.parquet"),
    ],
    "data_prep_gsm8k": [
        (["--source", "empty"], "there is no"),
        (["--train_size", "5"], "train_size with the data set itself"),
        (["--preset", "tiny", "--train_size", "0"], "a split would be empty"),
        (["--preset", "tiny", "--tokenizer", "./nowhere"], "not a tokenizer"),
    ],
    "data_prep_number_game": [
        ([], "apt-get install chromium"),
        (["--languages", "en,fr"], "choose from en, zh"),
        (["--source", "hub", "--hub_path", "/does/not/exist"], "has no train*.parquet"),
        (["--page_url", "http://127.0.0.1:9/x", "--reward_path", "none.py"], "there is no reward file none.py"),
    ],
}


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder to stand in, with a reward and without Chromium."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CHROMIUM", "/no/chromium")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "empty").mkdir()
    (tmp_path / "reward.py").write_text(REWARD)
    return tmp_path


def refused(call, folder, arguments, message) -> None:
    done = call("--reward_path", "reward.py", *arguments, "--output_dir", folder / "out")
    assert done.exit_code == 2, done.output
    assert "error: " in done.output
    assert message in done.output
    assert "Traceback" not in done.output
    assert not list((folder / "out").glob("*.parquet"))


@pytest.mark.parametrize("name", OPTIONS)
def test_wrong_options(script, here, name):
    call = script(name)
    for arguments, message in OPTIONS[name]:
        refused(call, here, arguments, message)


LINES = {
    '{"question": "How many?"}': "train.jsonl, line 2",
    '{"question": "How many?", "answer": 4}': "no answer",
    '{"question"': "not JSON",
    '{"question": "How many?", "answer": "four"}': "no number behind ####",
    json.dumps(QUESTION): "repeats a question",
}


def test_wrong_lines_of_gsm8k(script, here):
    call = script("data_prep_gsm8k")
    (here / "test.jsonl").write_text(json.dumps({"question": "How much is 2 + 2?", "answer": "#### 4"}) + "\n")
    for line, message in LINES.items():
        (here / "train.jsonl").write_text(f"{json.dumps(QUESTION)}\n{line}\n")
        refused(call, here, ["--source", "."], message)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("compare_configs", ["countdown", "--against", "easyr1:3bb"], "unknown official example"),
        ("collect_completions", ["nowhere"], "there is no"),
        ("pretrain", ["countdown", "--examples", 80, "--batch", 100], "--batch 100 is larger than --examples 80"),
    ],
)
def test_other_scripts(script, here, name, arguments, message):
    done = script(name)(*arguments, *(["--out", here / "tiny"] if name == "pretrain" else []))
    assert (done.exit_code, message in done.output, "Traceback" in done.output) == (2, True, False), done.output
