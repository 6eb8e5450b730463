"""The scripts that make data, as a user runs them; what they refuse is in test_mistakes.py."""

import json
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recipes.data.rows import find_manifest
from recipes.tasks.countdown.problems import bucket


def read(folder, split):
    return pq.read_table(folder / f"{split}.parquet").to_pylist()


# Countdown


def keys(rows):
    return [(tuple(sorted(r["extra_info"]["numbers"])), r["extra_info"]["target"]) for r in rows]


def test_countdowns_hub_file_is_cleaned_and_split(script, tmp_path):
    """40 good problems and three that must go: twice the same, no solution, two numbers."""
    good = [([a, a + 1, a + 2], 3 * a + 3) for a in range(1, 31)] + [([a, 50, 3, 2], 55 + a) for a in range(4, 14)]
    rows = [*good, ([3, 2, 1], 6), ([1, 1, 1], 77), ([5, 6], 11)]
    copy = tmp_path / "hub.parquet"
    pq.write_table(pa.table({"target": [target for _, target in rows], "nums": [nums for nums, _ in rows]}), copy)
    inside = sum(bucket(numbers) == "test" for numbers, _ in good)
    call, given = script("data_prep_countdown"), ("--source", "hub", "--output_dir", tmp_path / "out", "--hub_path")
    assert call(*given, copy).exit_code == 2, "fewer problems than the preset has"
    result = call(*given, copy, "--train_size", len(good) - inside, "--test_size", inside)
    assert result.exit_code == 0, result.output
    train, test = read(tmp_path / "out", "train"), read(tmp_path / "out", "test")
    assert sorted(keys(train) + keys(test)) == sorted((tuple(sorted(n)), t) for n, t in good)
    manifests = [find_manifest(tmp_path / "out" / f"{split}.parquet") for split in ("train", "test")]
    dropped = sum((Counter(each.dropped) for each in manifests), Counter())
    assert dropped == {
        "other_size": 1,
        "unsolvable": 1,
        "duplicate": 1,
    }


# GSM8K

QUESTIONS = [
    ("A hall has 12 rows of 30 seats. How many seats?", "12 * 30 = <<12*30=360>>360 seats.\n#### 360"),
    ("It is 3° at noon and falls by 8°. What is it?", "3 - 8 = <<3-8=-5>>-5.\n#### -5"),
]


def test_gsm8ks_original_files(script, tmp_path):
    for name, questions in (("train", QUESTIONS[:1]), ("test", QUESTIONS[1:])):
        lines = [json.dumps({"question": q, "answer": a}, ensure_ascii=False) for q, a in questions]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    result = script("data_prep_gsm8k")("--source", tmp_path, "--output_dir", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "GSM8K 7,473" in result.output
    (first,), (test,) = (read(tmp_path / "out", split) for split in ("train", "test"))
    assert first["problem"].startswith(QUESTIONS[0][0] + "\n")
    assert first["extra_info"]["solution"] == "12 * 30 = 360 seats.\n#### 360"
    assert (test["answer"], "3°" in test["problem"]) == ("-5", True)


# The number game


@pytest.mark.usefixtures("chromium_path")
def test_screenshots_from_chromium(script, tmp_path):
    call = script("data_prep_number_game")
    small = ("--preset", "tiny", "--train_size", 9, "--test_size", 9, "--rounds", 9, "--output_dir", tmp_path)
    done = call("--workers", 1, *small)
    assert done.exit_code == 0, done.output
    rows = read(tmp_path, "train")
    assert {row["answer"] for row in rows} == {"0", "1", "2"}
    assert rows[0]["images"][0]["bytes"].startswith(b"\x89PNG")
    manifest = find_manifest(tmp_path / "train.parquet")
    assert set(manifest.counts["light_and_answer"].values()) == {1}
    again = call(*small)
    assert "2 episodes were there, 0 played now" in again.output
    assert again.output.count("unchanged") == 2
