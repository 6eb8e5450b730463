"""Rules of the house that no linter knows: the names of launchers, and no path of anybody's machine."""

from __future__ import annotations

import re
import subprocess

from recipes.paths import ROOT

LAUNCHER = re.compile(r"(qwen|llama|smollm)[a-z0-9_]*_\d+(_\d+)?b_[a-z0-9_]+_grpo\.sh")


def test_grpo_launchers_name_model_and_task():
    names = {path.name for path in ROOT.glob("examples/*/*_grpo.sh")} - {"rce_grpo.sh"}
    assert names
    assert not [name for name in names if not LAUNCHER.fullmatch(name)]


def test_no_line_names_a_machine():
    pattern = "|".join(("/wo" + "rk/", "/ro" + "ot/", "/home/[a-z]+/", "/tmp/re" + "f"))
    found = subprocess.run(
        ["git", "grep", "-nIE", pattern, "--", ".", ":!tests/test_house.py"], cwd=ROOT, capture_output=True, text=True
    ).stdout
    assert not found, found
