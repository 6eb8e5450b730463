"""The sandbox benchmark runs and writes its figures; where there is no sandbox it says what to install."""

from __future__ import annotations

import json
import subprocess
import sys

from recipes.benchmarks.sandbox import sandbox
from recipes.errors import RecipeError
from recipes.paths import ROOT


def works() -> bool:
    try:
        sandbox()
    except RecipeError:
        return False
    return True


def test_it_reports_programs_a_second(tmp_path):
    command = [sys.executable, str(ROOT / "scripts" / "bench_sandbox.py"), "--programs", "2", "--repeats", "1"]
    done = subprocess.run(
        [*command, "--tests", "1", "--json", str(tmp_path / "out.json")], capture_output=True, text=True
    )
    if not works():
        assert done.returncode == 2
        assert "there is no sandbox to time" in done.stderr
        return
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "out.json").read_text())
    assert report["sandbox, 1 tests"]["programs_per_second"] > 0
    assert report["plain subprocess, 1 tests"]["ratio"] == 1.0
