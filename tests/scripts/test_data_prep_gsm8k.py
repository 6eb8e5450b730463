"""The GSM8K data script as a user runs it, on a few questions of our own."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pyarrow.parquet as pq
import pytest

from recipes.data.rows import read_manifest
from recipes.paths import ROOT
from recipes.provenance import sha256

SCRIPT = ROOT / "scripts" / "data_prep_gsm8k.py"
STAND_IN = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None, **_):
    right = solution_str.rpartition("####")[2].strip() == ground_truth
    return {"score": float(right), "reason": "correct" if right else "wrong"}
"""
QUESTIONS = [
    ("A hall has 12 rows of 30 seats. How many seats?", "12 * 30 = <<12*30=360>>360 seats.\n#### 360"),
    ("A farm sells 1,000 eggs and then 250. How many?", "1,000 + 250 = <<1000+250=1250>>1,250 eggs.\n#### 1,250"),
    ("It is 3° at noon and falls by 8°. What is it?", "3 - 8 = <<3-8=-5>>-5.\n#### -5"),
]


@pytest.fixture(scope="module")
def call(script):
    return script("data_prep_gsm8k")


@pytest.fixture
def reward(tmp_path):
    path = tmp_path / "stand_in.py"
    path.write_text(STAND_IN)
    return path


@pytest.fixture
def source(tmp_path):
    """A folder in the shape of the original data: two questions to train, one to test."""
    folder = tmp_path / "original"
    folder.mkdir()
    write(folder / "train.jsonl", QUESTIONS[:2])
    write(folder / "test.jsonl", QUESTIONS[2:])
    return folder


def write(path, questions):
    lines = [json.dumps({"question": q, "answer": a}, ensure_ascii=False) for q, a in questions]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def test_the_original_files_become_rows(call, tmp_path, source, reward):
    out = tmp_path / "out"
    result = call("--source", source, "--reward_path", reward, "--output_dir", out)
    assert result.exit_code == 0, result.output
    assert "train.parquet has 2 rows, GSM8K 7,473" in result.output
    train = pq.read_table(out / "train.parquet").to_pylist()
    assert [row["answer"] for row in train] == ["360", "1250"]
    assert train[0]["data_source"] == "gsm8k"
    assert train[0]["problem"].startswith(QUESTIONS[0][0] + "\n")
    assert train[0]["extra_info"] == {
        "split": "train",
        "index": 0,
        "question": QUESTIONS[0][0],
        "solution": "12 * 30 = <<12*30=360>>360 seats.",
        "num_steps": 1,
    }
    (test,) = pq.read_table(out / "test.parquet").to_pylist()
    assert (test["answer"], "3°" in test["problem"]) == ("-5", True)
    manifest = read_manifest(out / "train.parquet", verify=True)
    assert manifest["source"] == f"train.jsonl, SHA-256 {sha256(source / 'train.jsonl')}"
    assert (manifest["rows"], manifest["published_rows"]) == (2, 7473)
    assert manifest["counts"] == {"num_steps": {"1": 2}}


def test_the_tiny_preset_as_a_command(tmp_path):
    """Under the real reward, which every gold answer has to satisfy; the second time nothing changes."""
    environ = os.environ | {"ARTIFACTS_DIR": str(tmp_path)}
    command = [sys.executable, str(SCRIPT), "--preset", "tiny", "--train_size", "300"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "data" / "gsm8k_tiny"
    train, test = (read_manifest(folder / f"{name}.parquet", verify=True) for name in ("train", "test"))
    assert (train["rows"], test["rows"], train["counts"]["num_steps"].keys()) == (300, 256, {"1", "2"})
    again = subprocess.run(command, env=environ, capture_output=True, text=True)
    assert again.stdout.count("unchanged") == 2


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"question": "How many?"}', "train.jsonl, line 3"),
        ('{"question": "How many?", "answer": 4}', "no answer"),
        ('{"question": " ", "answer": "#### 4"}', "no question"),
        ("[1, 2]", "no question"),
        ('{"question"', "not JSON"),
        ('{"question": "How many?", "answer": "four"}', "no number behind ####"),
        (json.dumps({"question": QUESTIONS[0][0], "answer": "#### 360"}), "repeats a question"),
        (json.dumps({"question": QUESTIONS[2][0], "answer": "#### -5"}), "repeats a question"),
    ],
)
def test_bad_lines_are_named_and_nothing_is_written(call, tmp_path, source, reward, line, message):
    with (source / "train.jsonl").open("a", encoding="utf-8") as file:
        file.write(line + "\n")
    result = call("--source", source, "--reward_path", reward, "--output_dir", tmp_path / "out")
    assert result.exit_code == 2
    assert message in result.output
    assert not list((tmp_path / "out").glob("*"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--preset", "large"), "no preset 'large'"),
        (("--source", "nowhere"), "no source 'nowhere'"),
        (("--source", "."), "there is no"),
        (("--train_size", "5"), "train_size with the data set itself"),
        (("--preset", "tiny", "--train_size", "0"), "a split would be empty"),
        (("--preset", "tiny", "--tokenizer", "./nowhere"), "not a tokenizer"),
    ],
)
def test_bad_options_are_one_message_and_exit_code_2(call, tmp_path, monkeypatch, reward, arguments, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    result = call(*arguments, "--reward_path", reward, "--output_dir", tmp_path / "out")
    assert result.exit_code == 2
    assert message in result.output
    assert not (tmp_path / "out").exists()


def test_an_unreachable_hub_is_an_error(tmp_path, reward):
    environ = os.environ | {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_OFFLINE": "0"}
    command = [sys.executable, str(SCRIPT), "--reward_path", str(reward), "--output_dir", str(tmp_path / "out")]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60)
    assert (done.returncode, "openai/gsm8k cannot be read" in done.stderr) == (2, True)
