"""The command line of the comparison."""

from __future__ import annotations

import pytest


@pytest.fixture
def call(script, monkeypatch):
    # rich keeps the environment of its import, which a library that replaces os.environ leaves behind.
    monkeypatch.setattr("rich.console.Console._environ", {"COLUMNS": "240"})
    return script("compare_configs")


def test_the_table_is_shown_or_written_as_markdown(call, tmp_path):
    done = call("countdown")
    assert done.exit_code == 0, done.output
    assert "EasyR1, Qwen2.5-VL-3B, geo3k" in done.output
    page = tmp_path / "deep" / "page.md"
    options = ["--against", "verl:qwen3_8b_gsm8k", "--output", page, "--check"]
    assert call("countdown", *options).exit_code == 0
    assert "| `data.rollout_batch_size` | `64` | `1024` | task | prompts, so" in page.read_text(encoding="utf-8")


def test_check_fails_where_a_reason_is_missing(call, tmp_path):
    recipe = tmp_path / "toy.yaml"
    recipe.write_text(
        "data: {train_files: artifacts/a.parquet, val_files: artifacts/b.parquet, rollout_batch_size: 256}\n"
        "worker: {actor: {model: {model_path: org/model}}}\n",
        encoding="utf-8",
    )
    done = call(recipe, "--check")
    assert (done.exit_code, "no reason is given for" in done.output) == (2, True)
