"""The worked example of CONTRIBUTING.md works: its blocks are written into a copy of the tree's shape and run."""

import os
import re
import subprocess
import sys

import pytest

from recipes.paths import ROOT

BLOCK = re.compile(r"^```\w+ (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHARED = (
    "recipes",
    "scripts/launch.sh",
    "scripts/setup_env.sh",
    "configs/hardware",
    "configs/official",
    "constraints.txt",
    "pyproject.toml",
)


@pytest.mark.timeout(240)
def test_its_data_its_tests_and_its_dry_run(tmp_path):
    written = dict(BLOCK.findall((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")))
    for name in (*SHARED, *written):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    for name in SHARED:
        subprocess.run(["cp", "-r", ROOT / name, tmp_path / name], check=True)
    for name, text in written.items():
        (tmp_path / name).write_text(text, encoding="utf-8")

    def run(*words, **variables):
        environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(tmp_path), **variables}
        command = [sys.executable, *words]
        done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run("scripts/data_prep_reverse.py")
    assert (tmp_path / "artifacts/data/reverse/train.manifest.json").is_file()
    run("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/reward_functions/test_reverse.py")
    python = [name for name in written if name.endswith(".py")]
    for words in (["check"], ["format", "--check"]):
        run("-m", "ruff", *words, "--config", str(ROOT / "pyproject.toml"), *python)
    shown = run("-m", "recipes.launch", "reverse", DRY_RUN="1", HARDWARE="cpu")
    assert "data.train_batch_size=16" in shown
