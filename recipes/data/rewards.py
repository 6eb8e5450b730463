"""Reward files, loaded by path as a trainer does, and the check that every gold answer earns full marks."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from recipes.errors import RecipeError
from recipes.paths import ROOT
from recipes.python_files import find_beside, helpers, loaded, split_function

if TYPE_CHECKING:
    from recipes.data.rows import Row

Score = Callable[..., Any]


def load_reward(location: str | Path) -> ModuleType:
    """The module of a reward file, by `path` or `path:function`; a relative path may start at the repository's root.

    Raises:
        RecipeError: the file does not exist, fails while it is imported, or lacks the named function.
    """
    text, name = split_function(str(location))
    path = next((folder / text for folder in (Path(), ROOT) if (folder / text).is_file()), None)
    if path is None:
        raise RecipeError(f"there is no reward file {text}", where=str(location), fix="give the path of a Python file")
    if beside := helpers(path):
        find_beside(path)
        _refuse_taken_names(path, beside)
    own = f"reward_file_{path.stem}"
    try:
        module = loaded(path, own)
    except Exception as error:
        sys.modules.pop(own, None)
        what = f"the reward file fails at import: {type(error).__name__}: {error}"
        raise RecipeError(what, where=str(path), fix="mend it") from error
    if name and not callable(getattr(module, name, None)):
        raise RecipeError(f"{path} has no function {name}", where=str(location), fix="name one that it defines")
    return module


def _refuse_taken_names(reward: Path, beside: Mapping[str, Path]) -> None:
    """Raise if the reward's import would find another module instead of the one of that name beside the reward."""
    for name, file in beside.items():
        found = getattr(sys.modules.get(name), "__spec__", None) or importlib.util.find_spec(name)
        origin = found.origin if found else None
        if origin is None or not Path(origin).resolve().is_relative_to(file.resolve()):
            raise RecipeError(
                f"the reward imports {name}, and Python has another module of that name ({origin or 'a folder'})",
                where=f"{reward}; {file}",
                fix=f"rename {file.name} to a name of its own",
            )


def gold_checked(rows: Iterable[Row], score: Score) -> Iterator[Row]:
    """Yield the rows. Before a row is yielded, its `extra_info.solution` has to score 1.0 under the reward.

    Args:
        rows: from `recipes.data.rows.make_row`.
        score: the reward file's `compute_score`.

    Raises:
        RecipeError: at the first row whose solution does not score 1.0, with the reward's own reason.
    """
    for row in rows:
        truth, response = row["reward_model"]["ground_truth"], row["extra_info"]["solution"]
        result = score(row["data_source"], response, truth, row["extra_info"])
        parts = result if isinstance(result, dict) else {"score": result}
        if parts["score"] != 1.0:
            info, reason = row["extra_info"], parts.get("reason", "no reason given")
            raise RecipeError(
                f"the solution of {info['split']} row {info['index']} scores {parts['score']}, not 1.0 ({reason})",
                where=f"ground truth {truth!r}, solution {response[-200:]!r}",
                fix="mend the row or the reward; a reward that denies the gold answer teaches the wrong thing",
            )
        yield row
