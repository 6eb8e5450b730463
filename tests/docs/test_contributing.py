"""The worked example of CONTRIBUTING.md works: its blocks are written into a copy of the tree, and its commands run."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from recipes.paths import ROOT

BLOCK = re.compile(r"^```\w+ (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMANDS = re.compile(r"^    (.+reverse.*)$", re.MULTILINE)
LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "artifacts", "outputs", "docs")


@pytest.mark.timeout(240)
def test_its_example_passes_its_commands(tmp_path):
    page, copy = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), tmp_path / "copy"
    shutil.copytree(ROOT, copy, ignore=LEFT_OUT)
    written = dict(BLOCK.findall(page))
    for name, text in written.items():
        (copy / name).parent.mkdir(exist_ok=True)
        (copy / name).write_text(text, encoding="utf-8")
    executable, tests, launch = COMMANDS.findall(BLOCK.sub("", page))
    files = " ".join(name for name in written if name.endswith(".py"))
    style = f"ruff check {files} && ruff format --check {files}"
    commands = (executable, tests, "python scripts/data_prep_reverse.py", f"DRY_RUN=1 {launch}", style)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environ = {"PATH": path, "HOME": str(tmp_path), "PYTHONPATH": str(copy)}
    bash = ["bash", "-exc", "\n".join(commands)]
    done = subprocess.run(bash, cwd=copy, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout
    assert (copy / "artifacts/data/reverse/train.manifest.json").is_file()
    assert "data.train_batch_size=16" in done.stdout
