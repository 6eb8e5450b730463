"""Algorithms by name: `configs/algorithms/<name>.yaml` holds the few keys that make one, and what to know of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from recipes.config import yaml_io
from recipes.config.layers import Setting, Source
from recipes.config.merge import check_names, settings_of
from recipes.config.suggest import did_you_mean
from recipes.errors import RecipeError
from recipes.paths import CONFIGS

PRESET = "algorithm.preset"
"""The key that names one; the variable ALGORITHM sets it."""
FOLDER = CONFIGS / "algorithms"


@dataclass(frozen=True)
class Algorithm:
    """One file of `configs/algorithms`.

    Attributes:
        name: the file's, and the value of ALGORITHM.
        title: what the field calls it.
        paper: arXiv number.
        changes: what it does that the others do not.
        use: when it helps.
        settings: the keys it sets, as a layer of its own.
    """

    name: str
    title: str
    paper: str
    changes: str
    use: str
    settings: tuple[Setting, ...]

    @property
    def values(self) -> dict[str, Any]:
        """Dotted keys and their values."""
        return {setting.path: setting.value for setting in self.settings}


def names() -> list[str]:
    """Every algorithm that has a file."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def read(name: str, where: str = "algorithm") -> Algorithm:
    """The algorithm of that name. Raises RecipeError naming the nearest one; `where` says who asked."""
    known = names()
    if name not in known:
        raise RecipeError(
            f"unknown algorithm {name!r}",
            where=where,
            fix=did_you_mean(name, known) or f"use one of {', '.join(known)}",
        )
    shown = f"configs/algorithms/{name}.yaml"
    tree = yaml_io.read(FOLDER / f"{name}.yaml", shown)
    about = tree.pop("about")
    settings = settings_of(tree, Source("algorithm", shown))
    check_names(settings)
    return Algorithm(name, settings=tuple(settings), **about)


def layered(files: list[Setting], user: list[Setting]) -> list[Setting]:
    """Every setting in order, with those of the chosen algorithm.

    One that a file names stands below all files, so that what the files say wins; one that the user names in this run
    wins over all files. Variables and arguments win over both.
    """
    chosen = [setting for setting in (*files, *user) if setting.path == PRESET]
    if not chosen or chosen[-1].value in (None, "null"):
        return [*files, *user]
    last = chosen[-1]
    own = list(read(str(last.value), str(last.source)).settings)
    return [*files, *own, *user] if last.source.by_user else [*own, *files, *user]
