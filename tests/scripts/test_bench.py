"""The benchmarks' command line."""

from __future__ import annotations

import json
import subprocess
import sys

from recipes.paths import ROOT


def test_rewards_against_public_graders(tmp_path):
    command = [sys.executable, "scripts/bench.py", "rewards", "--rewards", "countdown", "--count", "200"]
    command += ["--repeats", "1", "--out", str(tmp_path / "out.json")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    graders = json.loads((tmp_path / "out.json").read_text())["countdown"]
    assert 50 < graders["reward_functions/countdown.py"]["full_marks"] < 150
