"""Documents tell the truth: links lead somewhere, named files exist, commands name real scripts and options."""

import functools
import re
import runpy
from unittest.mock import patch

import pytest
import typer
import typer.main

from recipes.config.variables import variable_names
from recipes.evaluation.cli import app as evaluation
from recipes.paths import ROOT
from recipes.pointer_selector.config import PointerRecipe
from tests.docs import docs_markdown
from tools import render_docs

PAGES = docs_markdown.pages()
COMMANDS = [command for page in PAGES for command in docs_markdown.commands(page)]
FOREIGN = ("CUDA_", "HF_", "PIP_", "PYTHONPATH", "WANDB_")
"""Prefixes of variables of other programs."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_named_files_exist(page):
    assert not [target for target in docs_markdown.links(page) if not docs_markdown.leads_somewhere(page, target)]
    named = docs_markdown.named_paths(page) if page.name != "CHANGELOG.md" else []  # which names what left
    assert not [name for name in named if not (ROOT / name).exists()]


@pytest.mark.parametrize("name", render_docs.PAGES)
def test_generated_tables_say_what_the_code_says(name):
    assert not render_docs.stale(ROOT / name, render_docs.BLOCKS), "run python -m tools.render_docs"


def test_commands_name_real_files_and_variables():
    assert len(COMMANDS) > 200
    for command in COMMANDS:
        known = variable_names() | (variable_names(PointerRecipe) if "pointer_selector" in str(command) else set())
        assert not [v for v in command.variables if v not in known and not v.startswith(FOREIGN)], command
        script = command.words[1] if len(command.words) > 1 and command.words[0] in {"bash", "python"} else ""
        if script.endswith((".sh", ".py")) and "/path/to/" not in script:
            folder = ROOT if (ROOT / script).exists() else (ROOT / command.page).parent
            assert (folder / script).is_file(), command


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
