"""The worked example of CONTRIBUTING.md works: its blocks are written into a copy of the tree's shape and run."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from recipes.paths import ROOT

BLOCK = re.compile(r"^```\w+ (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHARED = ("recipes", "scripts/launch.sh", "scripts/setup_env.sh", "configs/hardware", "constraints.txt", "setup.py")


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """A tree with this repository's code and the example's files; returns its root and a function that runs in it."""
    root = tmp_path_factory.mktemp("clone")
    for name in SHARED:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cp", "-r", ROOT / name, root / name], check=True)
    for name, text in BLOCK.findall((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")

    def run(*words, **variables):
        environ = {"PATH": os.environ["PATH"], "HOME": str(root), "PYTHONPATH": str(root), **variables}
        return subprocess.run(words, cwd=root, env=environ, capture_output=True, text=True, timeout=200)

    return root, run


@pytest.mark.timeout(240)  # mypy without its cache
def test_its_data_its_tests_its_dry_run_and_its_reward(clone):
    root, run = clone
    made = run(sys.executable, "scripts/data_prep_reverse.py")
    assert made.returncode == 0, made.stderr
    assert (root / "artifacts/data/reverse/train.manifest.json").is_file()

    assert (root / "examples/reverse/qwen2_5_0_5b_reverse_grpo.sh").is_file()
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/reward_functions/test_reverse.py"]
    tested = run(sys.executable, *words)
    assert "7 passed" in tested.stdout

    written = [name for name, _ in BLOCK.findall((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))]
    python = [name for name in written if name.endswith(".py")]
    assert len(python) == 3
    for words in (["check"], ["format", "--check"]):
        linted = run(sys.executable, "-m", "ruff", *words, "--config", str(ROOT / "pyproject.toml"), *python)
        assert linted.returncode == 0, linted.stdout
    given = ["--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(ROOT / ".mypy_cache")]
    typed = run(sys.executable, "-m", "mypy", *given, *[name for name in python if not name.startswith("tests/")])
    assert typed.returncode == 0, typed.stdout

    dry = run(sys.executable, "-m", "recipes.launch", "reverse", DRY_RUN="1", HARDWARE="cpu")
    assert dry.returncode == 0, dry.stderr
    assert "data.train_batch_size=16" in dry.stdout
    assert "recipes/tasks/countdown/tiny" in dry.stdout

    code = (
        "from recipes.data.rewards import load_reward; r = load_reward('reward_functions/reverse.py');"
        "one = r.compute_score('reverse', '<answer>2 1</answer>', '1 2');"
        "entry = {'response': '<answer>2 1</answer>', 'response_length': 3, 'ground_truth': '1 2'};"
        "many = r.compute_score_batch([entry]);"
        "assert many[0]['overall'] == one['score'] == 0.1, (one, many);"
        "assert many[0]['reason/wrong'] == 1.0 and {type(value) for value in many[0].values()} == {float}, many"
    )
    done = run(sys.executable, "-c", code)
    assert done.returncode == 0, done.stderr
