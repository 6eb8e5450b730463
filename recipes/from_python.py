"""Functions and rows of a running program as files, which trainers and later starts read."""

from __future__ import annotations

import ast
import base64
import hashlib
import inspect
import json
import os
import re
import reprlib
import symtable
import sys
import sysconfig
import textwrap
from collections.abc import Mapping
from contextlib import suppress
from datetime import date
from decimal import Decimal
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from recipes.errors import RecipeError, first_line
from recipes.files import write_whole
from recipes.pictures import encoded

MEND = "write it with def into a file, with all that it uses, and pass 'my_rewards.py:its_name'"


def function_location(function: Any, folder: Path) -> str:
    """`file.py:name` of a function, in its module's own file, or in one below `folder`.

    A function of a script or a notebook is written to `folder/<digest>/from_python.py`, with the functions, classes,
    imports and constants that it uses; one of a module in a package is imported there. Raises RecipeError for what
    cannot be written: a lambda, a closure, a method, or a use of an object.
    """
    if not isinstance(function, FunctionType) or function.__name__ == "<lambda>":
        shown = reprlib.Repr()
        shown.maxother = 200  # its name, which 30 characters would cut out
        raise RecipeError("it is no function with a name of its own", where=shown.repr(function), fix=MEND)
    try:
        return _location(function, function.__name__, folder)
    except RecipeError:
        raise
    except Exception as error:  # of an object that it uses: its attributes and its text are code of the user's
        what = f"it uses an object that cannot be looked at: {type(error).__name__}: {first_line(error)}"
        raise RecipeError(what, where=repr(function), fix=MEND) from error


def _location(function: FunctionType, name: str, folder: Path) -> str:
    module, lines = sys.modules.get(function.__module__), dict[str, str]()
    if module is None or module.__name__ == "__main__" or vars(module).get(name) is not function:
        _define(name, function, inspect.unwrap(function).__globals__, lines)
    elif module.__file__ and not module.__package__:
        return f"{module.__file__}:{name}"
    else:
        lines[name] = _outside(name, function)
    future = inspect.unwrap(function).__code__.co_flags & annotations.compiler_flag
    text = "\n".join(["from __future__ import annotations\n"] * bool(future) + [*lines.values()])
    return f"{_written(text, folder, 'from_python.py')}:{name}"


def _define(name: str, value: Any, space: Mapping[str, Any], lines: dict[str, str]) -> None:
    """Add the lines that define a name behind those of the names of `space` that they use."""
    lines[name] = ""  # functions may use one another
    if isinstance(inspect.unwrap(value), FunctionType | type) and value.__module__ == space.get("__name__"):
        text = _source(name, value)
        tables = [symtable.symtable(text, name, "exec")]
        for table in tables:
            tables += table.get_children()
            for used in sorted(symbol.get_name() for symbol in table.get_symbols() if symbol.is_global()):
                if used in space and used not in lines and not used.startswith("__"):
                    _define(used, space[used], space, lines)
    else:
        text = _outside(name, value)
    del lines[name]
    lines[name] = text


def _source(name: str, value: Any) -> str:
    """The source of a function or class, as it stands in a script or in the cells of a notebook."""
    plain = inspect.unwrap(value)
    if not isinstance(plain, type) and plain.__code__.co_freevars:
        what = f"{name} uses names of the function around it: {', '.join(plain.__code__.co_freevars)}"
        raise RecipeError(what, where=repr(value), fix=MEND)
    cells = getattr(sys.modules["__main__"], "In", [])  # Python 3.12 finds no class in them
    for cell in reversed(cells if isinstance(plain, type) else []):
        with suppress(SyntaxError):  # of a cell that never ran
            for node in ast.parse(cell).body:
                if isinstance(node, ast.ClassDef) and node.name == name:
                    first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
                    return "\n".join([*cell.splitlines()[first - 1 : node.end_lineno], ""])
    try:
        text = textwrap.dedent(inspect.getsource(plain))
        names = [getattr(node, "name", "") for node in ast.parse(text).body]
    except (OSError, TypeError, SyntaxError) as error:
        raise RecipeError(f"{name} has no source: {error}", where=repr(value), fix=MEND) from error
    if names != [name]:
        raise RecipeError(f"{name} is no def or class of that name in its source", where=repr(value), fix=MEND)
    return text


def _outside(name: str, value: Any) -> str:
    """The line that imports a module or its function or class, or that sets a constant."""
    home = value if isinstance(value, ModuleType) else sys.modules.get(getattr(value, "__module__", None) or "")
    own = getattr(value, "__name__", name)
    if home and home is value:
        return f"{_found(home)}import {home.__name__} as {name}\n"
    if home and home.__name__ != "__main__" and getattr(home, own, None) is value:
        return f"{_found(home)}from {home.__name__} import {own} as {name}\n"
    if isinstance(value, re.Pattern):
        return f"{name} = __import__('re').compile({value.pattern!r}, {value.flags})\n"
    try:
        constant = ast.literal_eval(tree := ast.parse(repr(value), mode="eval"))
        if constant != value:  # [...] is a list that holds itself
            raise ValueError
    except (ValueError, SyntaxError):
        what = f"it uses {name}, a {type(value).__name__}, which cannot be written as a constant"
        raise RecipeError(what, where=name, fix=f"make {name} inside the function; or {MEND}") from None
    for node in ast.walk(tree):
        if isinstance(node, ast.Set):  # whose order differs between processes
            node.elts.sort(key=ast.unparse)
    return f"{name} = {ast.unparse(tree)}\n"


def _found(module: ModuleType) -> str:
    """A line by which other processes find a module of the user's own; its path counts as part of the reward."""
    file = getattr(sys.modules[module.__name__.partition(".")[0]], "__file__", None)
    installed = sysconfig.get_path("stdlib"), "/site-packages/", "/dist-packages/"
    if not file or any(place in file for place in installed):
        return ""
    place = os.path.dirname(file) if file.endswith("__init__.py") else file
    return f"import os, sys\nsys.path.append(os.path.dirname({place!r}))\n"


def rows_file(rows: Any, folder: Path, image_key: str = "images") -> Path:
    """Rows as `folder/<digest>/rows.jsonl`: the same rows are the same file.

    `rows` are dictionaries in a list or another iterable, such as a `datasets.Dataset`, or a data frame. Pictures of
    PIL and bytes become base64, arrays lists. Paths of pictures start where Python runs: in the column `image_key`, in
    those of `PICTURES`, and in messages. Raises RecipeError for other rows, and for values that JSON does not have.
    """
    fix = "give a list of dictionaries, such as {'prompt': 'What is 17 + 25?', 'ground_truth': '42'}"
    lines = []
    if hasattr(rows, "iterrows"):
        if twice := [*rows.columns[rows.columns.duplicated()]]:
            raise RecipeError(f"the column {twice[0]} is given twice", where="the data frame", fix="rename or drop one")
        rows = rows.to_dict("records")
    for number, row in enumerate(rows, 1):
        try:
            if not isinstance(row, Mapping):
                raise TypeError(f"it is a {type(row).__name__}, not a dictionary")
            if any(isinstance(row.get(name), bytes) for name in ("prompt", "ground_truth")):
                raise TypeError("its prompt or ground_truth is bytes, of which decode() makes a text")
            row = {name: _absolute(value, name in (image_key, *PICTURES)) for name, value in row.items()}
            lines.append(json.dumps(row, ensure_ascii=False, default=_plain) + "\n")
            lines[-1].encode()  # a half of a surrogate pair cannot be written
        except (TypeError, ValueError, RecursionError) as error:
            raise RecipeError(f"row {number} cannot be written: {error}", where=reprlib.repr(row), fix=fix) from error
    if not lines:
        raise RecipeError("there are no rows", where=repr(rows)[:80], fix=fix)
    return _written("".join(lines), folder, "rows.jsonl")


def _written(text: str, folder: Path, name: str) -> Path:
    path = folder / hashlib.sha256(text.encode()).hexdigest()[:12] / name
    write_whole(path, text)
    return path


PICTURES = ("image", "images", "image_path", "image_paths", "picture", "pictures")
"""Columns whose paths start where Python runs."""


def _absolute(value: Any, is_picture: bool) -> Any:
    """A value whose pictures' paths are absolute; `is_picture` says whether a text in it is a picture's path."""
    if getattr(getattr(value, "dtype", None), "kind", "") in ("O", "U", "T") and getattr(value, "ndim", False):
        value = value.tolist()  # of paths; arrays of numbers are written as they are
    if isinstance(value, list | tuple):
        return [_absolute(each, is_picture) for each in value]
    if isinstance(value, dict):
        held = is_picture or (isinstance(kind := value.get("type"), str) and kind in ("image", "image_url"))
        names = ("path", "url", "image", "image_url")
        return {name: _absolute(each, held and name in names) for name, each in value.items()}
    is_file = is_picture and isinstance(value, str | Path) and os.path.isfile(value)
    return os.path.abspath(value) if is_file else value


def _plain(value: Any) -> Any:
    """A value that JSON does not have, as one that it has. Raises TypeError."""
    if hasattr(value, "getbands"):
        value = encoded(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode()
    if hasattr(value, "tolist"):
        if getattr(getattr(value, "dtype", None), "kind", "") == "M":
            value = value.astype("M8[us]")  # NumPy gives times in nanoseconds as whole numbers
        return value.tolist()
    if isinstance(value, Decimal | Path):
        return str(value)
    if hasattr(value, "isoformat"):  # NaT has it too, and is not equal to itself
        return str(value).removesuffix(" 00:00:00" if isinstance(value, date) else "") if value == value else None
    raise TypeError(f"{str(value)[:60]} is a {type(value).__name__}, which JSON does not have")
