"""Every YAML file of the tree loads as its kind, and comments name verl's keys rightly."""

import os
import re
from pathlib import Path

import pytest

from recipes.config import check, load
from recipes.config.resolve import tasks
from recipes.config.schema import Recipe, leaves
from recipes.engines.verl import translation as verl
from recipes.paths import CONFIGS

ABOUT = re.compile(r"^about:\n(  .*\n)+", re.MULTILINE)
"""What an algorithm's file says of it in prose."""
FILES = sorted(CONFIGS.rglob("*.yaml"))
COMMENTED = [path for path in FILES if path.parent.name in ("hardware", "algorithms") or path.stem in tasks()]


def shown(path: Path) -> str:
    return os.path.relpath(path, CONFIGS)


@pytest.mark.parametrize("task", tasks())
def test_a_recipe_resolves_passes_its_checks_and_translates(task):
    for hardware, embedded in (("cpu", "0"), ("cpu", "1"), ("gpu", "0"), ("gpu", "1")):
        few = {"GPUS_PER_NODE": "1"} if embedded == "1" else {}
        recipe = load(task, environ={"EMBEDDED": embedded, **few}, hardware=hardware)
        check(recipe)
        assert recipe.name == task
        assert verl.translate(recipe)["trainer.experiment_name"] == recipe.trainer.experiment_name


@pytest.mark.parametrize("path", COMMENTED, ids=shown)
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
            assert right or path.parent.name == "hardware", f"{shown(path)}: {key} is not {word}"
