"""A function in a Python file, `file.py` or `file.py:function`, as rewards are named; and how such a file is loaded.

Every process that judges a response imports this: the standard library alone.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def split_function(text: str) -> tuple[str, str | None]:
    """`file.py:name` to file and name; the name is None where it is not given."""
    path, colon, name = text.rpartition(":")
    return (path, name) if colon and name.isidentifier() and path else (text, None)


def name_of(location: str) -> str:
    """Return the name of a reward in metrics: its function's where that is given, else its file's."""
    path, function = split_function(location)
    return function or Path(path).stem


def loaded(path: str | Path, name: str) -> ModuleType:
    """Run a Python file as the module `name`. Raises ImportError for a file of another kind."""
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look a module up by its name
    spec.loader.exec_module(module)
    return module


def find_beside(path: str | Path) -> None:
    """Let a file import what lies beside it; its folder is the last on the path, where it hides no other module."""
    folder = str(Path(path).resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)
