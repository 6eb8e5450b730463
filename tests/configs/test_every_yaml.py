"""Every YAML file of the tree is of a known kind, is counted, and loads as that kind."""

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

# How many files there are of each kind. A new file changes its number here, on purpose.
COMMENTED = "recipe", "hardware", "algorithm"
ABOUT = re.compile(r"^about:\n(  .*\n)+", re.MULTILINE)
"""What an algorithm's file says of it in prose."""


def every_yaml() -> list[Path]:
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.yaml", "*.yml"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    return sorted({ROOT / name for name in listing if (ROOT / name).is_file()})


def kind(path: Path) -> str:
    """What a file is, by its folder; a recipe for a trainer of our own by that trainer's name."""
    if path.parent == CONFIGS:
        return "recipe" if path.stem in tasks() else engine_of(path)
    if path.parent.name == "cluster":
        return "cluster"  # tests/examples/test_cluster_files.py holds it against its schema
    folders = {"hardware": "hardware", "official": "official", "algorithms": "algorithm"}
    return folders.get(path.parent.name, "unknown") if path.parent.parent == CONFIGS else "unknown"


FILES = every_yaml()


def shown(path: Path) -> str:
    return os.path.relpath(path, ROOT)


def test_every_yaml_is_of_a_known_kind():
    unknown = [shown(path) for path in FILES if kind(path) == "unknown"]
    assert not unknown, f"say here what these are, and load them: {unknown}"


@pytest.mark.parametrize("path", FILES, ids=shown)
def test_it_is_yaml_without_duplicate_keys(path):
    assert read(path, shown(path))


@pytest.mark.parametrize("task", tasks())
@pytest.mark.parametrize("hardware", ["cpu", "gpu"])
@pytest.mark.parametrize("embedded", ["0", "1"])
def test_a_recipe_resolves_passes_its_checks_and_translates(task, hardware, embedded):
    few = {"GPUS_PER_NODE": "1"} if embedded == "1" else {}
    recipe = load(task, environ={"EMBEDDED": embedded, **few}, hardware=hardware)
    check(recipe)
    assert recipe.name == task
    assert verl.translate(recipe)["trainer.experiment_name"] == recipe.trainer.experiment_name


@pytest.mark.parametrize("path", [path for path in FILES if kind(path) in COMMENTED], ids=shown)
def test_every_value_says_what_it_is(path):
    """`name: value  # verl's name, why`: a reader of the file sees what the number means."""
    bare = []
    for number, line in enumerate(ABOUT.sub("", path.read_text(encoding="utf-8")).splitlines(), 1):
        code, _, comment = line.partition("  # ")
        name, colon, value = code.strip().partition(":")
        if colon and value.strip() and not code.strip().startswith("#") and len(comment.strip()) < 4:
            bare.append((number, name))
    assert not bare, f"{shown(path)}: {bare}"


@pytest.mark.parametrize("path", [path for path in FILES if kind(path) in ("recipe", "algorithm")], ids=shown)
def test_comments_name_verls_keys_rightly(path):
    """A comment that begins with one of verl's names names the key that the value is translated to."""
    for key, comment in commented_keys(path):
        word = comment.split(";")[0].split()[0].rstrip(":,")
        if "." not in word or word.endswith((".sh", ".py")):
            continue
        names = leaves(Recipe)[key].info.verl
        assert any(name == word or name.endswith(f".{word}") for name in names), f"{shown(path)}: {key} is not {word}"


def commented_keys(path: Path) -> list[tuple[str, str]]:
    """(key, comment) for every commented value of a recipe; keys of the embedded block without its name."""
    found, parents = [], [(-1, "")]
    for line in path.read_text(encoding="utf-8").splitlines():
        code, _, comment = line.partition("  # ")
        name, colon, _ = code.strip().partition(":")
        if not colon or code.strip().startswith("#"):
            continue
        indent = len(code) - len(code.lstrip())
        while parents[-1][0] >= indent:
            parents.pop()
        key = f"{parents[-1][1]}.{name}".lstrip(".").removeprefix("embedded.")
        parents.append((indent, key))
        if comment and key in leaves(Recipe):
            found.append((key, comment))
    return found


def test_comments_are_found():
    assert len(commented_keys(CONFIGS / "countdown.yaml")) > 30
