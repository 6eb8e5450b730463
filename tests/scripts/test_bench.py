"""The benchmarks' command line."""

from __future__ import annotations

import json
import subprocess
import sys

from recipes.paths import ROOT


def test_rewards(tmp_path):
    command = [sys.executable, "scripts/bench.py", "rewards", "--rewards", "countdown,qa", "--count", "20"]
    command += ["--repeats", "1", "--out", str(tmp_path / "out.json")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "out.json").read_text())
    assert 0 < report["countdown"] < 100
    assert 0 < report["qa"] < 100
