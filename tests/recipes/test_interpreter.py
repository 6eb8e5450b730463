"""A script runs with whatever Python started it, where the set-up has been made; else it says what to do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from recipes.paths import ROOT

SCRIPT = """\
import sys
sys.path.insert(0, {root!r})
from recipes.interpreter import ensure
ensure()
import typer
print(typer.NAME, sys.argv[1:])
"""


@pytest.fixture
def repository(tmp_path):
    """The package alone, and a script that wants typer."""
    (tmp_path / "recipes").mkdir()
    for name in ("__init__.py", "interpreter.py", "paths.py"):
        shutil.copy(ROOT / "recipes" / name, tmp_path / "recipes" / name)
    (tmp_path / "script.py").write_text(SCRIPT.format(root=str(tmp_path)))
    return tmp_path


def run(repository):
    """With a Python that sees no packages."""
    base = os.path.realpath(sys.executable)
    return subprocess.run(
        [base, "-S", str(repository / "script.py"), "a b"],
        capture_output=True,
        text=True,
        env={"PATH": os.environ["PATH"]},
    )


def environment(repository, name=".venv", whole=True):
    """A Python that has typer, in its place: a module of that name on its path."""
    packages = repository / name / "packages"
    packages.mkdir(parents=True)
    (packages / "typer.py").write_text(f"NAME = {name!r}\n")
    python = repository / name / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nPYTHONPATH={packages} exec {os.path.realpath(sys.executable)} "$@"\n')
    python.chmod(0o755)
    if whole:
        (repository / name / ".complete").write_text("x")


@pytest.mark.parametrize("name", [".venv", ".venv.cpu"])
def test_the_environment_takes_over_with_the_same_words(repository, name):
    environment(repository, name)
    done = run(repository)
    assert (done.returncode, done.stdout) == (0, f"{name} ['a b']\n"), done.stderr


@pytest.mark.parametrize("half_made", [True, False])
def test_without_a_whole_environment_the_set_up_is_named(repository, half_made):
    if half_made:
        environment(repository, whole=False)
    done = run(repository)
    assert done.returncode == 2
    assert "fix:   bash scripts/setup_env.sh" in done.stderr
    assert "Traceback" not in done.stderr


def test_every_script_asks_for_it():
    sources = {path.name: path.read_text(encoding="utf-8") for path in sorted((ROOT / "scripts").glob("*.py"))}
    # A script that hands over to another one, by runpy, leaves it to that one.
    assert [name for name, text in sources.items() if "\nensure()\n" not in text and "runpy.run_path" not in text] == []
