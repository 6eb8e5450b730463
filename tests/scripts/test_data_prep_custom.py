"""The script that converts a user's file, from its command line."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys

import pyarrow.parquet as pq
import pytest

from recipes.paths import ROOT

EXAMPLE = ROOT / "examples" / "custom_task" / "data" / "example.jsonl"


def load_script():
    path = ROOT / "scripts" / "data_prep_custom.py"
    spec = importlib.util.spec_from_file_location("data_prep_custom", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def run(tmp_path):
    def start(*words):
        environ = {**os.environ, "ARTIFACTS_DIR": str(tmp_path / "artifacts"), "COLUMNS": "200"}
        command = [sys.executable, str(ROOT / "scripts" / "data_prep_custom.py"), *map(str, words)]
        return subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120)

    return start


def test_the_example_is_converted_once_and_counted(tmp_path, monkeypatch, capsys):
    """In this process: the tokenizer's library takes seconds to import."""
    monkeypatch.setenv("ARTIFACTS_DIR", str(tmp_path / "artifacts"))
    script = load_script()
    tiny = ROOT / "recipes" / "tasks" / "countdown" / "tiny"
    script.main([EXAMPLE], tokenizer=str(tiny), max_prompt_length=40)
    said = capsys.readouterr().out
    assert "train: classification" in said
    assert "a limit of 40 drops" in said
    (folder,) = (tmp_path / "artifacts" / "data" / "custom").iterdir()
    rows = [pq.read_metadata(folder / f"{name}.parquet").num_rows for name in ("train", "test")]
    assert sum(rows) == len(EXAMPLE.read_text(encoding="utf-8").splitlines())
    script.main([EXAMPLE])
    assert capsys.readouterr().out.count("there already") == 2


def test_a_wrong_row_is_named_and_nothing_is_written(run, tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("prompt,answer\nWhat is 1 + 1?,2\n")
    done = run(path, "--output_dir", tmp_path / "out", "--data_source", "math")
    assert done.returncode == 2
    assert "mine.csv, line 2" in done.stderr
    assert "rename answer to ground_truth" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_given_validation_data_a_template_and_a_folder(run, tmp_path):
    for name, numbers in (("train", range(4)), ("val", range(4, 6))):
        lines = [{"prompt": f"q{i}", "ground_truth": i} for i in numbers]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (tmp_path / "t.jinja").write_text("{{ content }} Be brief.")
    words = ["--val_data", "val.jsonl", "--template", "t.jinja", "--data_source", "qa", "--output_dir", "out"]
    done = run("train.jsonl", *words)
    assert done.returncode == 0, done.stderr
    assert pq.read_table(tmp_path / "out" / "test.parquet")["problem"].to_pylist() == ["q4 Be brief.", "q5 Be brief."]
    manifest = json.loads((tmp_path / "out" / "train.manifest.json").read_text())
    assert "scripts/data_prep_custom.py" in manifest["command"]
    assert manifest["data_sources"] == {"qa": 4}
