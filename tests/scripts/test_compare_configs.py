"""The command line of the comparison."""

from __future__ import annotations

import importlib.util

import pytest
import typer
from typer.testing import CliRunner

from recipes.paths import ROOT

_spec = importlib.util.spec_from_file_location("compare_configs", ROOT / "scripts/compare_configs.py")
compare_configs = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(compare_configs)


@pytest.fixture
def run(monkeypatch):
    # rich keeps the environment of its import, which a library that replaces os.environ leaves behind.
    monkeypatch.setattr("rich.console.Console._environ", {"COLUMNS": "240"})
    app = typer.Typer()
    app.command()(compare_configs.main)
    return lambda *words: CliRunner().invoke(app, list(words))


def test_terminal_by_default_against_easyr1s_pair(run):
    done = run("countdown")
    assert done.exit_code == 0, done.output
    assert "EasyR1, Qwen2.5-VL-3B, geo3k" in done.output
    assert "EasyR1, Qwen2.5-VL-7B, geo3k" in done.output
    assert "worker.rollout.n" in done.output


def test_markdown_in_a_file(run, tmp_path):
    page = tmp_path / "deep" / "page.md"
    done = run(
        "countdown", "--against", "verl:qwen3_8b_gsm8k", "--format", "markdown", "--output", str(page), "--check"
    )
    assert done.exit_code == 0, done.output
    assert "| `data.rollout_batch_size` | `64` | `1024` | prompts, so" in page.read_text(encoding="utf-8")


def test_html(run):
    done = run("countdown", "--against", "easyr1:7b", "--format", "html")
    assert done.output.startswith("<!DOCTYPE html>")


def test_list(run):
    done = run("--list")
    assert done.exit_code == 0
    assert "easyr1:qwen2_5_vl_3b_geo3k" in done.output.splitlines()


def test_check_fails_where_a_reason_is_missing(run, tmp_path):
    recipe = tmp_path / "toy.yaml"
    recipe.write_text(
        "data: {train_files: artifacts/a.parquet, val_files: artifacts/b.parquet, rollout_batch_size: 256}\n"
        "worker: {actor: {model: {model_path: org/model}}}\n",
        encoding="utf-8",
    )
    assert run(str(recipe)).exit_code == 0
    done = run(str(recipe), "--check")
    assert done.exit_code == 2
    assert "no reason is given for" in done.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("countdown", "--against", "easyr1:3bb"), "unknown official example"),
        (("countdwn",), "unknown task"),
    ],
)
def test_mistakes_end_with_2_and_one_message(run, words, message):
    done = run(*words)
    assert done.exit_code == 2
    assert message in done.output
    assert "Traceback" not in done.output
