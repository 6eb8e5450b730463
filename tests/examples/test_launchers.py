"""Launchers: one shape, and the variables in their head have the values of the recipe."""

from __future__ import annotations

import os
import re

import pytest
import yaml

from recipes.config import load, tasks
from recipes.config.variables import VARIABLES
from recipes.paths import ROOT

LAUNCHERS = [path for path in sorted(ROOT.glob("examples/*/*.sh")) if path.parent.name != "cluster"]
ENTRY = re.compile(r"#   ([A-Z][A-Z_]+) +(\S+)( .*)?")
EXEC = re.compile(r'exec bash "\$\(dirname "\$\{BASH_SOURCE\[0\]\}"\)/\.\./\.\./scripts/launch\.sh" (\w+) "\$@"')
KEYS = {name: variable.key for variable in VARIABLES for name in variable.names}


@pytest.mark.parametrize("path", LAUNCHERS, ids=lambda path: path.name)
def test_launchers_have_one_shape(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    assert lines[0] == "#!/usr/bin/env bash"
    assert "set -euo pipefail" in lines
    assert [line for line in lines if line.startswith("exec ")] == lines[-1:]
    assert lines[-1].endswith('"$@"'), "a launcher passes its arguments on"
    assert os.access(path, os.X_OK), "a launcher is executable"
    assert (path.parent / "README.md").is_file(), "every task has a README beside its launcher"


@pytest.mark.parametrize("task", tasks())
def test_the_variables_in_the_head_have_the_recipes_values(task):
    heads = {match[1]: path for path in LAUNCHERS if (match := EXEC.search(path.read_text(encoding="utf-8")))}
    entries = [
        match for line in heads[task].read_text(encoding="utf-8").splitlines() if (match := ENTRY.fullmatch(line))
    ]
    recipe = load(task, environ={"EMBEDDED": "0"}, hardware="gpu")
    for name, value, _ in (match.groups() for match in entries):
        in_recipe, shown = recipe.value(KEYS[name]), yaml.safe_load(value)
        assert in_recipe == (float(shown) if isinstance(in_recipe, float) else shown), name
