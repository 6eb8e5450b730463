"""The benchmarks' command line: quick ones as they are, the smoke run on a pretended launcher."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from recipes.paths import ROOT

FAKE = """
import json, os, sys
folder = os.path.join(os.environ["ARTIFACTS_DIR"], "runs", os.environ["EXPERIMENT_NAME"])
os.makedirs(folder)
with open(os.path.join(folder, "metrics.jsonl"), "w") as metrics:
    for step in range(int(os.environ["MAX_STEPS"]) + 1):
        print(json.dumps({"step": step, "data": {"timing_s/step": 1.5} if step else {}}), file=metrics)
print("out of memory")
sys.exit(int(sys.argv[1]))
"""


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


@pytest.mark.parametrize("status", [0, 1])
def test_the_launcher_is_run_and_reported(status: int, tmp_path: Path) -> None:
    fake = tmp_path / "fake.py"
    fake.write_text(FAKE)
    options = ["--steps", "2", "--interval", "0.02", "--out", str(tmp_path / "out.json")]
    options += ["--command", f"{sys.executable} {fake} {status}"]
    done = bench("smoke", *options, ARTIFACTS_DIR=str(tmp_path / "artifacts"))
    report = json.loads((tmp_path / "out.json").read_text())

    assert done.returncode == (2 if status else 0), done.stderr
    assert report["exit_code"] == status
    assert report["step_s"] == [1.5, 1.5]
    assert "each further step" in done.stdout
    assert ("the command ended with 1" in done.stderr) is bool(status)
    assert ("out of memory" in done.stdout) is bool(status)
