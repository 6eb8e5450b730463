"""Loading reward files by path, in the launcher and in the trainers' processes.

Every process that judges a response imports this module, so it imports the standard library and errors alone.
"""

import ast
import importlib.machinery
import importlib.util
import inspect
import os
import sys
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from recipes.errors import RecipeError
from recipes.paths import ROOT, split_function

NAMES = {"verl": ("compute_score",), "easyr1": ("compute_score_batch", "compute_score")}
"""Engine -> functions that it looks for in a reward file if the user names none; the first that exists is taken."""
SIGNATURES = "compute_score(data_source, solution_str, ground_truth, extra_info=None) or compute_score(reward_inputs)"


class _FromSource(importlib.machinery.SourceFileLoader):
    """Always compile the file: cached bytecode would still be used after a same-size change in the same second."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def load_reward(location: str | Path, kind: str = "reward") -> ModuleType:
    """The module of a reward file, or of another `kind` of file that a user wrote, at `path` or `path:function`.

    A relative path may start at the repository's root. The file may import what lies beside it: its folder becomes the
    last on Python's path, so that its files hide no other module. Raises RecipeError for a file that does not exist,
    fails while it is imported, lacks the named function, or imports a file beside it by another module's name.
    """
    text, name = split_function(str(location))
    path = next((folder / text for folder in (Path(), ROOT) if (folder / text).is_file()), None)
    if path is None:
        raise RecipeError(f"there is no {kind} file {text}", where=str(location), fix="give the path of a Python file")
    if beside := files_beside(path):
        folder = str(path.resolve().parent)
        if folder not in sys.path:
            sys.path.append(folder)
        _refuse_taken_names(path, beside, kind)
    try:
        module = _run(path)
    except (Exception, SystemExit) as error:
        what = f"the {kind} file fails at import: {type(error).__name__}: {error}"
        lost = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
        fix = f"install it: pip install {lost}; or mend the import" if lost else "mend it"
        raise RecipeError(what, where=str(path), fix=fix) from error
    if name and not callable(getattr(module, name, None)):
        raise RecipeError(f"{path} has no function {name}", where=str(location), fix="name one that it defines")
    return module


def _run(path: Path) -> ModuleType:
    """Run a Python file as a module. Raises ImportError for a file of another kind, and whatever the file raises."""
    if path.suffix != ".py":
        raise ImportError(f"{path} is not a Python file")
    name = f"reward_{path.stem}_{zlib.crc32(os.fsencode(path.resolve())):x}"  # two files of one name are two modules
    loader = _FromSource(name, str(path))
    module = importlib.util.module_from_spec(importlib.machinery.ModuleSpec(name, loader, origin=str(path)))
    module.__file__ = str(path)
    sys.modules[name] = module  # dataclasses and pickle look a module up by its name
    try:
        loader.exec_module(module)
    except BaseException:  # the next try begins anew
        del sys.modules[name]
        raise
    return module


def find_function(module: ModuleType, location: str, engine: str = "verl") -> Callable[..., Any]:
    """The function of a reward's file that an engine calls. Raises RecipeError where the file has none."""
    path, named = split_function(location)
    names = (named,) if named else NAMES[engine]
    found = next((function for name in names if callable(function := getattr(module, name, None))), None)
    if found is None:
        have = [key for key, value in vars(module).items() if inspect.isfunction(value) and not key.startswith("_")]
        what = f"the reward file has no function {' or '.join(names)} (it has {', '.join(have) or 'none'})"
        raise RecipeError(what, where=path, fix=f"define {SIGNATURES}, or name another function as file.py:function")
    return found


def files_beside(path: Path) -> dict[str, Path]:
    """Files and folders beside a file that it imports, by name; found without running it."""
    heads = sorted({name.partition(".")[0] for name in names_in(path)[0]} - {""})
    files = {name: path.with_name(f"{name}.py") for name in heads}
    packages = {name: path.with_name(name) for name in heads if (path.with_name(name) / "__init__.py").is_file()}
    return packages | {name: file for name, file in files.items() if file.is_file()}


def names_in(file: Path) -> tuple[set[str], set[str]]:
    """The names that a Python file imports, relative ones with their dots, and its string literals.

    Both are empty for a file that cannot be read or parsed; its error is reported elsewhere.
    """
    try:
        tree = ast.parse(file.read_bytes() if file.suffix == ".py" else "")  # of bytes, Python reads the encoding
    except (OSError, SyntaxError, ValueError):
        return set(), set()
    imported: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            imported |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
    literals = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]  # parts of f-strings too
    literals += [_joined(node) for node in ast.walk(tree) if isinstance(node, ast.BinOp)]
    return imported, {literal for literal in literals if isinstance(literal, str)}


def _joined(node: ast.AST) -> str:
    """The text that `FOLDER / "sub" / "words.txt"` adds to a path: sub/words.txt; empty where there is none."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and isinstance(node.right, ast.Constant):
        return os.path.join(_joined(node.left), node.right.value) if isinstance(node.right.value, str) else ""
    return ""


def _refuse_taken_names(reward: Path, beside: Mapping[str, Path], kind: str) -> None:
    """Raise where the file imports a file beside it by name, and Python would find another module of that name."""
    for name, file in beside.items():
        found = getattr(sys.modules.get(name), "__spec__", None) or importlib.util.find_spec(name)
        origin = found.origin if found else None
        if origin is None or not Path(origin).resolve().is_relative_to(file.resolve()):
            raise RecipeError(
                f"the {kind} file imports {name}, and Python has another module of that name ({origin or 'a folder'})",
                where=f"{reward}; {file}",
                fix=f"rename {file.name} to a name of its own",
            )
