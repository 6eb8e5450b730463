"""Load reward files by path, as a trainer loads them."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from recipes.errors import RecipeError
from recipes.paths import ROOT
from recipes.python_files import find_beside, helpers, loaded, split_function


def load_reward(location: str | Path) -> ModuleType:
    """The module of a reward file, by `path` or `path:function`; a relative path may start at the repository's root.

    Raises:
        RecipeError: the file does not exist, fails while it is imported, lacks the named function, or imports a file
            beside it whose name another module has too.
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
    """Raise where the reward imports a file beside it by name, and Python would find another module of that name."""
    for name, file in beside.items():
        found = getattr(sys.modules.get(name), "__spec__", None) or importlib.util.find_spec(name)
        origin = found.origin if found else None
        if origin is None or not Path(origin).resolve().is_relative_to(file.resolve()):
            raise RecipeError(
                f"the reward imports {name}, and Python has another module of that name ({origin or 'a folder'})",
                where=f"{reward}; {file}",
                fix=f"rename {file.name} to a name of its own",
            )
