"""The benchmarks' command line: quick ones as they are, the smoke run on a pretended launcher."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from recipes.paths import ROOT


def bench(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "scripts/bench.py", *words]
    env = {"PATH": "/usr/bin:/bin", **environ} if environ else None
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)


def test_rewards_against_public_graders(tmp_path: Path) -> None:
    words = ["--rewards", "countdown", "--count", "200", "--repeats", "1", "--out", str(tmp_path / "out.json")]
    done = bench("rewards", *words)
    assert done.returncode == 0, done.stderr
    graders = json.loads((tmp_path / "out.json").read_text())["countdown"]
    assert 50 < graders["reward_functions/countdown.py"]["full_marks"] < 150
    assert "no benchmark for 'chess'" in bench("rewards", "--rewards", "chess").stderr
