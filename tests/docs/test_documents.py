"""Documents tell the truth: links lead somewhere, named files exist, commands name real scripts and options."""

from __future__ import annotations

import functools
import re
import shlex
import subprocess
import sys
import tomllib

import docs_markdown
import pytest
import typer.main

from recipes.config import load
from recipes.config.variables import variable_names
from recipes.engines.checkpoints import Checkpoint
from recipes.evaluation.cli import make_app
from recipes.paths import ROOT
from recipes.pointer_selector.config import VARIABLES as POINTER_VARIABLES
from recipes.runs.summary import next_commands

PAGES = docs_markdown.pages()
COMMANDS = [command for page in PAGES for command in docs_markdown.commands(page)]
FOREIGN = ("CUDA_", "HF_", "PIP_", "PYTHONPATH", "WANDB_")
"""How variables of other programs begin."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_named_files_exist(page):
    assert not [target for target in docs_markdown.links(page) if not docs_markdown.leads_somewhere(page, target)]
    assert not [name for name in docs_markdown.named_paths(page) if not (ROOT / name).exists()]


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
def help_text(*words: str) -> str:
    """What `python WORDS --help` prints."""
    environ = {"PATH": "/usr/bin:/bin", "COLUMNS": "200", "PYTHONPATH": str(ROOT), "TERM": "dumb"}
    command = [sys.executable, *words, "--help"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environ, check=True).stdout


SCRIPTS = {c.words[1] for c in COMMANDS if c.words[:1] == ("python",) and c.words[1].endswith(".py")}
SCRIPTS -= {"scripts/serve.py"}  # its options are vLLM's, whose help takes half a minute


@pytest.mark.parametrize("script", sorted(SCRIPTS))
def test_commands_use_real_options(script):
    for command in (command for command in COMMANDS if command.words[:2] == ("python", script)):
        evaluation = re.fullmatch(r"scripts/eval(?:_(countdown|gsm8k))?\.py", script)
        if evaluation:
            arguments = [word for word in command.words[2:] if word not in ("[", "]")]
            typer.main.get_command(make_app(evaluation[1])).make_context("eval", arguments)
        elif options := [word.split("=")[0] for word in command.words[2:] if word.startswith("--")]:
            subcommand = [word for word in command.words[2:3] if re.fullmatch(r"[a-z][a-z_-]+", word)]
            assert not [option for option in options if option not in help_text(script, *subcommand)], command


def test_the_closing_lines_of_a_run_are_commands():
    """The scripts exist, and their help shows each subcommand and option."""
    recipe = load("countdown", environ={}, hardware="cpu")
    checkpoint = Checkpoint(1, ROOT, ROOT)
    typed = [text for _, text in next_commands(recipe, "countdown", checkpoint, 1, {})]
    scripts = [words for text in typed if (words := shlex.split(text))[0].startswith("python")]
    assert len(scripts) == 2
    after = dict(next_commands(recipe, "countdown", Checkpoint(100, ROOT, ROOT), 1, {}))["more steps"]
    assert "MAX_STEPS=200 " in after, "fewer steps than the checkpoint has would be none"
    for _, script, *words in scripts:
        assert (ROOT / script).is_file()
        shown = help_text(script, *words[:1])
        assert not [word for word in words if word.startswith("--") and word not in shown], script
