"""The script that converts a user's file, from its command line."""

from __future__ import annotations

import json
import subprocess
import sys

import pyarrow.parquet as pq

from recipes.data.rows import read_manifest
from recipes.paths import ROOT

EXAMPLE = ROOT / "examples" / "custom_task" / "data" / "example.jsonl"


def test_the_examples_are_converted_once_and_counted(script, tmp_path, monkeypatch):
    monkeypatch.setenv("ARTIFACTS_DIR", str(tmp_path / "artifacts"))
    call, tiny = script("data_prep_custom"), ROOT / "recipes" / "tasks" / "countdown" / "tiny"
    done = call(EXAMPLE, "--tokenizer", tiny, "--max_prompt_length", 40)
    assert done.exit_code == 0, done.output
    assert "train: classification" in done.output
    assert "a limit of 40 drops" in done.output
    (folder,) = (tmp_path / "artifacts" / "data" / "custom").iterdir()
    train, test = (read_manifest(folder / f"{name}.parquet") for name in ("train", "test"))
    assert train["rows"] + test["rows"] == len(EXAMPLE.read_text(encoding="utf-8").splitlines())
    assert train["rows"] >= 256, "a step of the recipe's batch"
    assert (len(train["data_sources"]), train["repeated_prompts"]) == (6, 0)
    assert call(EXAMPLE).output.count("there already") == 2
    done = call(EXAMPLE.with_name("embedded.jsonl"), "--tokenizer", tiny, "--max_prompt_length", 37)
    assert done.output.count("prompts of 37 to 37 tokens; a limit of 37 drops 0") == 2


def run(folder, *words):
    command = [sys.executable, str(ROOT / "scripts" / "data_prep_custom.py"), *map(str, words)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)


def test_a_wrong_row_is_named_and_nothing_is_written(tmp_path):
    (tmp_path / "mine.csv").write_text("prompt,answer\nWhat is 1 + 1?,2\n")
    done = run(tmp_path, "mine.csv", "--output_dir", tmp_path / "out", "--data_source", "math")
    assert done.returncode == 2
    for words in ("mine.csv, line 2", "rename answer to ground_truth"):
        assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_given_validation_data_a_template_and_a_folder(tmp_path):
    for name, numbers in (("train", range(4)), ("val", range(4, 6))):
        lines = [{"prompt": f"q{i}", "ground_truth": i} for i in numbers]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (tmp_path / "t.jinja").write_text("{{ content }} Be brief.")
    words = ["--val_data", "val.jsonl", "--template", "t.jinja", "--data_source", "qa", "--output_dir", "out"]
    done = run(tmp_path, "train.jsonl", *words)
    assert done.returncode == 0, done.stderr
    assert pq.read_table(tmp_path / "out" / "test.parquet")["problem"].to_pylist() == ["q4 Be brief.", "q5 Be brief."]
    manifest = json.loads((tmp_path / "out" / "train.manifest.json").read_text())
    assert "scripts/data_prep_custom.py" in manifest["command"]
    assert manifest["data_sources"] == {"qa": 4}
