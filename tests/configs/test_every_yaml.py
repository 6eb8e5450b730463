"""Every YAML file of the tree is of a known kind and loads as that kind; comments name verl's keys rightly."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from recipes.config import check, load
from recipes.config.layers import read
from recipes.config.resolve import engine_of, tasks
from recipes.config.schema import Recipe, leaves
from recipes.engines import verl
from recipes.paths import CONFIGS, ROOT

ABOUT = re.compile(r"^about:\n(  .*\n)+", re.MULTILINE)
"""What an algorithm's file says of it in prose."""
FOLDERS = {"hardware": "hardware", "official": "official", "algorithms": "algorithm"}


def every_yaml() -> list[Path]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.yaml", "*.yml"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    return sorted({ROOT / name for name in listing if (ROOT / name).is_file()})


def kind(path: Path) -> str:
    """What a file is, by its folder; a recipe for a trainer of our own by that trainer's name."""
    if path.parent == CONFIGS:
        return "recipe" if path.stem in tasks() else engine_of(path)
    if path.parent.name == "cluster":
        return "cluster"  # tests/examples/test_cluster_files.py holds it against its schema
    return FOLDERS.get(path.parent.name, "unknown") if path.parent.parent == CONFIGS else "unknown"


FILES = every_yaml()


def shown(path: Path) -> str:
    return os.path.relpath(path, ROOT)


def test_every_yaml_is_of_a_known_kind_without_duplicate_keys():
    unknown = [shown(path) for path in FILES if kind(path) == "unknown"]
    assert not unknown, f"say here what these are, and load them: {unknown}"
    assert all(read(path) for path in FILES)


@pytest.mark.parametrize("task", tasks())
def test_a_recipe_resolves_passes_its_checks_and_translates(task):
    for hardware, embedded in (("cpu", "0"), ("cpu", "1"), ("gpu", "0"), ("gpu", "1")):
        few = {"GPUS_PER_NODE": "1"} if embedded == "1" else {}
        recipe = load(task, environ={"EMBEDDED": embedded, **few}, hardware=hardware)
        check(recipe)
        assert recipe.name == task
        assert verl.translate(recipe)["trainer.experiment_name"] == recipe.trainer.experiment_name


@pytest.mark.parametrize(
    "path", [path for path in FILES if kind(path) in ("recipe", "hardware", "algorithm")], ids=shown
)
def test_every_value_has_a_comment_and_verls_names_in_it_are_right(path):
    """`key: value  # verl's name; why`: the key is translated to that name."""
    parents = [(-1, "")]
    for line in ABOUT.sub("", path.read_text(encoding="utf-8")).splitlines():
        code, _, comment = line.partition("  # ")
        name, colon, value = code.strip().partition(":")
        if not colon or code.strip().startswith("#"):
            continue
        indent = len(code) - len(code.lstrip())
        while parents[-1][0] >= indent:
            parents.pop()
        key = f"{parents[-1][1]}.{name}".lstrip(".").removeprefix("embedded.")
        parents.append((indent, key))
        assert not value.strip() or len(comment.strip()) > 3, f"{shown(path)}: {key} has no comment"
        word = comment.split(";")[0].split()[0].rstrip(":,") if comment.strip() else ""
        if key in leaves(Recipe) and "." in word and not word.endswith((".sh", ".py")):
            names = leaves(Recipe)[key].info.verl
            right = any(verls == word or verls.endswith(f".{word}") for verls in names)
            assert right or kind(path) == "hardware", f"{shown(path)}: {key} is not {word}"
