"""Documents tell the truth: links lead somewhere, named files exist, commands name real scripts and options."""

from __future__ import annotations

import functools
import re
import runpy
import shlex
import tomllib
from unittest.mock import patch

import docs_markdown
import pytest
import typer
import typer.main

from recipes.config import load
from recipes.config.variables import variable_names
from recipes.engines.checkpoints import Checkpoint
from recipes.evaluation.cli import app as evaluation
from recipes.paths import ROOT
from recipes.pointer_selector.config import VARIABLES as POINTER_VARIABLES
from recipes.runs.summary import next_commands

PAGES = docs_markdown.pages()
COMMANDS = [command for page in PAGES for command in docs_markdown.commands(page)]
FOREIGN = ("CUDA_", "HF_", "PIP_", "PYTHONPATH", "WANDB_")
"""Prefixes of variables of other programs."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_named_files_exist(page):
    assert not [target for target in docs_markdown.links(page) if not docs_markdown.leads_somewhere(page, target)]
    named = docs_markdown.named_paths(page) if page.name != "CHANGELOG.md" else []  # which names what left
    assert not [name for name in named if not (ROOT / name).exists()]


@pytest.mark.parametrize("index", ["docs/README.md", "docs/zh/README.md"])
def test_the_index_leads_to_every_page(index):
    targets = (target.partition("#")[0] for target in docs_markdown.links(ROOT / index))
    linked = {(ROOT / index).parent.joinpath(target).resolve() for target in targets}
    chinese = index.startswith("docs/zh")
    pages = set((ROOT / index).parent.glob("*.md"))
    pages |= set((ROOT / "examples").glob("*/README_zh.md" if chinese else "*/README.md"))
    assert not {page for page in pages if page != ROOT / index} - linked


def test_commands_name_real_files_and_variables():
    assert len(COMMANDS) > 200
    for command in COMMANDS:
        known = variable_names() | (variable_names(POINTER_VARIABLES) if "pointer_selector" in str(command) else set())
        assert not [v for v in command.variables if v not in known and not v.startswith(FOREIGN)], command
        script = command.words[1] if len(command.words) > 1 and command.words[0] in {"bash", "python"} else ""
        if script.endswith((".sh", ".py")) and "/path/to/" not in script:
            folder = ROOT if (ROOT / script).exists() else (ROOT / command.page).parent
            assert (folder / script).is_file(), command


@pytest.mark.parametrize(
    ("page", "heading"),
    [("docs/ARCHITECTURE.md", "## The layers of `recipes`"), ("docs/zh/ARCHITECTURE.md", "## `recipes` 的层")],
)
def test_the_page_on_architecture_has_the_layers_of_the_import_contract(page, heading):
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    layers = [
        {name.removeprefix("recipes.") for name in layer.split(" | ")} for layer in contract["contracts"][0]["layers"]
    ]
    text = (ROOT / page).read_text(encoding="utf-8")
    block = text.partition(heading)[2].partition("```text\n")[2].partition("```")[0]
    assert [set(re.split(r"\s{2,}", line)[0].split(", ")) for line in block.splitlines()] == layers


@functools.cache
def options(script: str, subcommand: str = "") -> set[str]:
    """The options of a script, read from its command line where it would run."""
    found: list[typer.Typer] = []

    def run(function):
        found.append(typer.Typer())
        found[0].command()(function)

    with patch("typer.run", run), patch("typer.Typer.__call__", lambda app: found.append(app)):
        runpy.run_path(str(ROOT / script), run_name="__main__")
    command = typer.main.get_command(found[0])
    command = getattr(command, "commands", {}).get(subcommand, command)
    stated = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    texts = [command.help, *(getattr(parameter, "help", "") for parameter in command.params)]
    return stated | set(re.findall(r"--[\w-]+", " ".join(map(str, texts))))  # some read words by themselves


def test_commands_use_real_options():
    for command in COMMANDS:
        if command.words[0] != "python" or not command.words[1].endswith(".py") or "serve" in command.words[1]:
            continue  # serve.py's are vLLM's
        script, *words = command.words[1:]
        if re.fullmatch(r"scripts/eval(?:_(countdown|gsm8k))?\.py", script):
            arguments = [word for word in words if word not in ("[", "]")]
            typer.main.get_command(evaluation).make_context("eval", arguments)
        else:
            typed = {word.split("=")[0] for word in words if word.startswith("--")}
            assert typed <= options(script, words[0] if words else ""), command


def test_the_closing_lines_of_a_run_are_commands():
    recipe = load("countdown", environ={}, hardware="cpu")
    checkpoint = Checkpoint(1, ROOT, ROOT)
    typed = [text for _, text in next_commands(recipe, "countdown", checkpoint, 1, {})]
    scripts = [words for text in typed if (words := shlex.split(text))[0].startswith("python")]
    scripts = [words for words in scripts if "serve" not in words[1]]  # whose options are vLLM's
    assert scripts
    after = dict(next_commands(recipe, "countdown", Checkpoint(100, ROOT, ROOT), 1, {}))["more steps"]
    assert "MAX_STEPS=200 " in after, "fewer steps than the checkpoint has would be none"
    for _, script, *words in scripts:
        assert {word for word in words if word.startswith("--")} <= options(script, words[0])
