"""Documents tell the truth: links lead somewhere, named files exist, commands name real scripts and options."""

from __future__ import annotations

import functools
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from recipes.config.variables import variable_names
from recipes.paths import ROOT
from recipes.pointer_selector.config import VARIABLES as POINTER_VARIABLES

_spec = importlib.util.spec_from_file_location("docs_markdown", Path(__file__).with_name("markdown.py"))
markdown = importlib.util.module_from_spec(_spec)
sys.modules["docs_markdown"] = markdown
_spec.loader.exec_module(markdown)

PAGES = markdown.pages()
COMMANDS = [command for page in PAGES for command in markdown.commands(page)]
FOREIGN_VARIABLES = {
    "CUDA_VISIBLE_DEVICES",
    "HF_ENDPOINT",
    "HF_HUB_OFFLINE",
    "PIP_FIND_LINKS",
    "PYTHONPATH",
    "WANDB_API_KEY",
    "WANDB_MODE",
}


@functools.cache
def help_text(script: str) -> str:
    """What `python script --help` prints, with that of each of its subcommands."""
    text = _help([script])
    for line in text.split("Commands", 1)[1].splitlines() if "Commands" in text else []:
        name = line.strip("│ ").split(" ")[0]
        if name.replace("-", "").replace("_", "").isalpha():
            text += _help([script, name])
    return text


def _help(words: list[str]) -> str:
    done = subprocess.run(
        [sys.executable, *words, "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", "COLUMNS": "200", "PYTHONPATH": str(ROOT), "TERM": "dumb"},
    )
    return done.stdout if done.returncode == 0 else ""


def test_there_are_pages_and_commands():
    assert len(PAGES) >= 5
    assert len(COMMANDS) >= 10


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_named_files_exist(page):
    missing = [target for target in markdown.links(page) if not (page.parent / target).exists()]
    missing += [name for name in markdown.named_paths(page) if not (ROOT / name).exists()]
    assert not missing, f"{page.relative_to(ROOT)} names what is not there: {missing}"


@pytest.mark.parametrize("index", ["docs/README.md", "docs/zh/README.md"])
def test_the_index_leads_to_every_page(index):
    linked = {(ROOT / index).parent.joinpath(target).resolve() for target in markdown.links(ROOT / index)}
    chinese = index.startswith("docs/zh")
    pages = set((ROOT / index).parent.glob("*.md"))
    pages |= set((ROOT / "examples").glob("*/README_zh.md" if chinese else "*/README.md"))
    assert not {page for page in pages if page != ROOT / index} - linked


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_commands_name_real_files_and_variables(command):
    own = {variable.name for variable in POINTER_VARIABLES} if "pointer_selector" in str(command) else set()
    unknown = set(command.variables) - variable_names() - own - FOREIGN_VARIABLES
    assert not unknown, f"{command} sets {unknown}, which the environment table does not know"
    if len(command.words) < 2 or command.words[0] not in {"bash", "python"}:
        return
    script = command.words[1]
    if script.endswith((".sh", ".py")) and "/path/to/" not in script:
        folder = ROOT if (ROOT / script).exists() else (ROOT / command.page).parent
        assert (folder / script).is_file(), f"{command} runs {script}, which does not exist"


@pytest.mark.parametrize(
    "command",
    [c for c in COMMANDS if c.words[:1] == ("python",) and c.words[1:2] != ("-m",) and len(c.words) > 2],
    ids=str,
)
def test_commands_use_real_options(command):
    offered = help_text(command.words[1])
    options = [word.split("=")[0] for word in command.words[2:] if word.startswith("--")]
    wrong = [option for option in options if option not in offered]
    assert not wrong, f"{command} uses {wrong}, which `--help` does not list"
