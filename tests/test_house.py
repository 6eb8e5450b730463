"""The rules of the house that a machine can check: names, sizes, and what must never appear."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

from recipes.paths import ROOT

VERBS = {"bench", "collect", "compare", "data", "eval", "plot", "play", "pretrain", "render", "sweep", "train"}
SHELL_HELPERS = {"launch.sh", "setup_env.sh", "test.sh"}


def tracked(*patterns: str) -> list[Path]:
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    return [ROOT / name for name in sorted(set(listing)) if (ROOT / name).is_file()]


PYTHON = tracked("*.py")
LAUNCHERS = tracked("examples/*/*.sh")


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", PYTHON, ids=relative)
def test_python_files_say_what_they_are(path):
    source = path.read_text(encoding="utf-8")
    if source.strip():
        assert ast.get_docstring(ast.parse(source)), f"{relative(path)} does not say what it is"


@pytest.mark.parametrize("path", [p for p in PYTHON if "tests" not in p.parts], ids=relative)
def test_no_broad_except_and_no_eval(path):
    source = path.read_text(encoding="utf-8")
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if _is_broad(node) or _runs_text(node):
            where = f"{relative(path)}:{node.lineno}"
            assert "# allowed: " in lines[node.lineno - 1], f"{where} hides bugs or runs text (`# allowed: why`)"


def _is_broad(node: ast.AST) -> bool:
    """An `except` that catches everything and does not raise again."""
    if not isinstance(node, ast.ExceptHandler) or any(isinstance(inner, ast.Raise) for inner in ast.walk(node)):
        return False
    return node.type is None or getattr(node.type, "id", "") in {"Exception", "BaseException"}


def _runs_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and getattr(node.func, "id", "") in {"eval", "exec"}


@pytest.mark.parametrize(
    "path", [p for p in LAUNCHERS if p.name.endswith("_grpo.sh") and p.name != "rce_grpo.sh"], ids=relative
)
def test_grpo_launchers_name_model_and_task(path):
    assert re.match(r"(qwen|llama|smollm)[a-z0-9_]*_\d+(_\d+)?b_[a-z0-9_]+_grpo\.sh", path.name)


@pytest.mark.parametrize("path", tracked("scripts/*"), ids=relative)
def test_scripts_are_named_by_verb_and_object(path):
    if path.suffix == ".sh":
        assert path.name in SHELL_HELPERS
    else:
        assert path.stem.split("_")[0] in VERBS, f"{path.name}: begin with one of {sorted(VERBS)}"


def test_no_line_names_a_machine():
    pattern = "|".join(("/wo" + "rk/", "/ro" + "ot/", "/home/[a-z]+/", "/tmp/re" + "f"))
    found = subprocess.run(
        ["git", "grep", "-nIE", pattern, "--", ".", ":!tests/test_house.py"], cwd=ROOT, capture_output=True, text=True
    ).stdout
    assert not found, found
