"""docs/ALGORITHMS.md: every command on it passes the launcher's dry run, and its table is of all algorithms."""

from __future__ import annotations

import importlib.util
import shlex
import sys
from pathlib import Path

import pytest

from recipes.config import load, resolve
from recipes.launch import show_plan
from recipes.paths import ROOT

_spec = importlib.util.spec_from_file_location("docs_markdown", Path(__file__).with_name("markdown.py"))
markdown = importlib.util.module_from_spec(_spec)
sys.modules["docs_markdown"] = markdown
_spec.loader.exec_module(markdown)

PAGE = ROOT / "docs" / "ALGORITHMS.md"


@pytest.mark.parametrize("hardware", ["cpu", "gpu"])
@pytest.mark.parametrize("command", markdown.commands(PAGE), ids=str)
def test_a_command_passes_its_dry_run(command, hardware, capsys):
    words = shlex.split(command.text)
    environ = dict(word.split("=", 1) for word in words[: len(command.variables)])
    _, launcher, *arguments = words[len(command.variables) :]
    assert (ROOT / launcher).is_file()
    recipe = load(Path(launcher).parent.name, environ=environ, arguments=arguments, hardware=hardware)
    show_plan(recipe)
    shown = capsys.readouterr().out
    name = recipe.algorithm.preset
    assert f"preset: {name or 'null'}\n" in shown
    for word in ("verl.trainer" if hardware == "gpu" else "verl_cpu.main", "# responses per step"):
        assert word in shown


def test_there_are_commands_and_a_row_for_every_algorithm():
    text = PAGE.read_text(encoding="utf-8")
    assert len(markdown.commands(PAGE)) >= 9
    for name in resolve.algorithms():
        assert text.count(f"\n| `{name}` |") == 1
        assert resolve.algorithm(name).paper in text


def test_the_prose_names_keys_that_exist():
    from recipes.config.schema import Recipe, leaves, sections
    from recipes.config.variables import variable_names

    quoted = [word.split("=")[0].strip() for part in PAGE.read_text().split("`")[1::2] for word in part.split()]
    keys = [word for word in quoted if word.startswith(("algorithm.", "worker.", "trainer.", "data."))]
    known = {*leaves(Recipe), *sections(Recipe)}
    assert len(keys) > 15
    assert [key for key in keys if key.rstrip(":.*") not in known] == []
    capitals = {word for word in quoted if word.isupper() and "_" in word}
    assert capitals - variable_names() == set()
