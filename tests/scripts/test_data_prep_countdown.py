"""The Countdown data script as a user runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recipes.data.rows import read_manifest
from recipes.paths import ROOT
from recipes.provenance import sha256
from recipes.tasks.countdown.data import bucket

SCRIPT = ROOT / "scripts" / "data_prep_countdown.py"


@pytest.fixture(scope="module")
def call(script):
    return script("data_prep_countdown")


def read(folder, split):
    return pq.read_table(folder / f"{split}.parquet").to_pylist()


def keys(rows):
    return [(tuple(sorted(r["extra_info"]["numbers"])), r["extra_info"]["target"]) for r in rows]


def test_the_paper_preset_as_a_command(tmp_path):
    environ = os.environ | {"ARTIFACTS_DIR": str(tmp_path), "COLUMNS": "120"}
    command = [sys.executable, str(SCRIPT), "--preset", "paper", "--train_size", "4096", "--seed", "7"]
    done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "4,608 rows" in done.stdout
    folder = tmp_path / "data" / "countdown"
    train, test = read(folder, "train"), read(folder, "test")
    assert (len(train), len(test)) == (4096, 512)
    assert len({*keys(train), *keys(test)}) == 4608
    assert not {numbers for numbers, _ in keys(train)} & {numbers for numbers, _ in keys(test)}
    manifest = read_manifest(folder / "train.parquet", verify=True)
    assert manifest["command"] == "python scripts/data_prep_countdown.py --preset paper --train_size 4096 --seed 7"
    assert manifest["counts"]["sizes"].keys() == {"3", "4"}
    assert sum(manifest["counts"]["num_solutions"].values()) == 4096
    assert manifest["seed"] == 7
    for index, row in enumerate(train):
        info = row["extra_info"]
        assert (info["split"], info["index"]) == ("train", index)
        assert json.loads(row["answer"]) == {"target": info["target"], "numbers": info["numbers"]}
        assert row["answer"] == row["reward_model"]["ground_truth"]
        assert info["num_solutions"] >= 1


def test_the_tiny_preset_keeps_out_of_what_was_seen_beforehand(call, tmp_path):
    result = call("--preset", "tiny", "--train_size", 300, "--test_size", 100, "--output_dir", tmp_path)
    assert result.exit_code == 0, result.output
    for split in ("train", "test"):
        assert {bucket(row["extra_info"]["numbers"]) for row in read(tmp_path, split)} == {split}


def test_same_seed_same_bytes_and_other_data_need_force(call, tmp_path):
    small = ("--train_size", 200, "--test_size", 50, "--output_dir", tmp_path)
    assert call(*small).exit_code == 0
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir() if p.suffix == ".parquet"}
    again = call(*small)
    assert again.exit_code == 0
    assert again.output.count("unchanged") == 2
    other = call(*small, "--seed", 1)
    assert other.exit_code == 2
    assert "holds other data" in other.output
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir() if p.suffix == ".parquet"} == before
    forced = call(*small, "--seed", 1, "--force")
    assert forced.exit_code == 0
    assert forced.output.count("replaced") == 2
    assert before["train.parquet"] != (tmp_path / "train.parquet").read_bytes()


def test_a_hub_file_is_cleaned_and_split(call, tmp_path):
    """40 good problems and four that must go: twice the same, no solution, a target too large, two numbers."""
    good = [([a, a + 1, a + 2], 3 * a + 3) for a in range(1, 31)] + [([a, 50, 3, 2], 55 + a) for a in range(4, 14)]
    rows = [*good, ([3, 2, 1], 6), ([1, 1, 1], 77), ([90, 30, 7], 127), ([5, 6], 11)]
    copy = tmp_path / "hub.parquet"
    pq.write_table(pa.table({"target": [target for _, target in rows], "nums": [nums for nums, _ in rows]}), copy)
    pq.write_table(pa.table({"question": ["?"]}), tmp_path / "other.parquet")
    inside = sum(bucket(numbers) == "test" for numbers, _ in good)
    given = ("--source", "hub", "--output_dir", tmp_path / "out", "--hub_path")
    wrong, few = call(*given, tmp_path / "other.parquet"), call(*given, copy)
    assert (wrong.exit_code, "no column nums, target" in wrong.output) == (2, True)
    assert (few.exit_code, "were asked for" in few.output, "--train_size" in few.output) == (2, True, True)
    result = call(*given, copy, "--train_size", len(good) - inside, "--test_size", inside)
    assert result.exit_code == 0, result.output
    train, test = read(tmp_path / "out", "train"), read(tmp_path / "out", "test")
    assert sorted(keys(train) + keys(test)) == sorted((tuple(sorted(n)), t) for n, t in good)
    manifests = [read_manifest(tmp_path / "out" / f"{split}.parquet") for split in ("train", "test")]
    assert manifests[0]["source"] == f"hub.parquet, SHA-256 {sha256(copy)}"
    totals = {reason: sum(each["dropped"][reason] for each in manifests) for reason in manifests[0]["dropped"]}
    assert totals == {"other_size": 1, "out_of_range": 1, "unsolvable": 1, "duplicate": 1}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--preset", "large"), "no preset 'large'"),
        (("--source", "web"), "no source 'web'"),
        (("--sizes", "3;4"), "not a list of numbers"),
        (("--sizes", "9"), "9 numbers a problem"),
        (("--max_target", "0"), "max_target=0"),
        (("--train_size", "-1"), "train_size=-1"),
        (("--reward_path", "nowhere.py"), "no reward file"),
        (("--max_number", "2", "--sizes", "2", "--train_size", "500"), "no further problem"),
        (("--source", "hub", "--hub_path", "nowhere.parquet"), "nowhere.parquet"),
    ],
)
def test_bad_input_is_one_message_and_exit_code_2(call, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    result = call(*arguments, "--output_dir", tmp_path / "out")
    assert result.exit_code == 2
    assert result.output.startswith("error: ")
    assert message in result.output
    assert "Traceback" not in result.output
    assert not list((tmp_path / "out").glob("*"))
