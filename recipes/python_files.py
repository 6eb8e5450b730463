"""Reward files: `file.py:function`, loading one, awaiting async rewards, and the files that a reward uses.

Every process that judges a response imports this module, so it imports the standard library alone.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.machinery
import importlib.util
import os
import sys
import threading
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import asyncio

Result = TypeVar("Result")
_loop: asyncio.AbstractEventLoop | None = None
_starting = threading.Lock()
THREAD = "async rewards"
"""Name of the thread whose event loop runs async rewards."""
_SYSTEM = ("/bin/", "/dev/", "/etc/", "/lib/", "/lib64/", "/proc/", "/sbin/", "/sys/", "/usr/")
"""Files of the system, which differ between machines and are no part of a reward."""


def split_function(text: str) -> tuple[str, str | None]:
    """`file.py:name` to file and name; the name is None where it is not given."""
    path, colon, name = text.rpartition(":")
    return (path, name) if colon and name.isidentifier() and path else (text, None)


def name_of(location: str) -> str:
    """Return the name of a reward in metrics: its function's where that is given, else its file's."""
    path, function = split_function(location)
    return function or Path(path).stem


class _FromSource(importlib.machinery.SourceFileLoader):
    """Always compile the file: cached bytecode would still be used after a same-size change in the same second."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def loaded(path: str | Path, name: str) -> ModuleType:
    """Run a Python file as the module `name`. Raises ImportError for a file of another kind."""
    if Path(path).suffix != ".py":
        raise ImportError(f"{path} is not a Python file")
    loader = _FromSource(name, str(path))
    module = importlib.util.module_from_spec(importlib.machinery.ModuleSpec(name, loader, origin=str(path)))
    module.__file__ = str(path)
    sys.modules[name] = module  # dataclasses and pickle look a module up by its name
    loader.exec_module(module)
    return module


def awaited(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Return what an async reward gives, or raise what it raises; several threads can wait at the same time.

    One event loop per process runs all of them, as in verl: a client that a reward keeps between its calls is bound to
    the loop of the first call. Raises RuntimeError in that loop's thread, which would deadlock.
    """
    import asyncio

    loop = _started_loop()
    if threading.current_thread().name == THREAD:
        coroutine.close()
        raise RuntimeError("an async reward awaits another one itself: `await` it there")
    waiting = None
    try:
        waiting = asyncio.run_coroutine_threadsafe(coroutine, loop)
        return waiting.result()
    except BaseException:  # Ctrl-C among them; cancelling a finished future does nothing
        if waiting is not None:
            waiting.cancel()
        raise


def _started_loop() -> asyncio.AbstractEventLoop:
    global _loop
    import asyncio

    with _starting:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_run_loop, args=(_loop,), name=THREAD, daemon=True).start()
        return _loop


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    while True:  # SystemExit in a reward stops the loop; its next round passes the exception to the caller
        with suppress(SystemExit, KeyboardInterrupt):
            loop.run_forever()


def _forget_loop() -> None:
    global _loop, _starting
    _loop, _starting = None, threading.Lock()


os.register_at_fork(after_in_child=_forget_loop)  # a forked child has the loop object but not its thread


def find_beside(path: str | Path) -> None:
    """Let a file import its neighbours; its folder is appended to `sys.path`, where it shadows no other module."""
    folder = str(Path(path).resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)


def helpers(path: Path) -> dict[str, Path]:
    """Return what a file itself imports from its own folder: name -> file or folder; found without running it."""
    heads = {name.partition(".")[0] for name in _names(path)[0]} - {""}
    places = {name: (path.with_name(f"{name}.py"), path.with_name(name)) for name in sorted(heads)}
    files = {name: file for name, (file, _) in places.items() if file.is_file()}
    packages = {name: folder for name, (_, folder) in places.items() if (folder / "__init__.py").is_file()}
    return {**packages, **files}


def own_files(path: Path) -> list[Path]:
    """Return a file, the Python files of its folder that it loads, and the files that it opens.

    The file is parsed and not run.
    A file loads another by importing it, or by a path that is a string literal in it: `"helper.py"`, `"../words.txt"`,
    `"/data/words.txt"`, `f"{folder}/words.txt"`, `folder / "sub" / "words.txt"`, or the name of a package, of which
    every Python file counts. A path that is built otherwise while the reward runs is not found.
    """
    root, found, waiting = path.parent, dict[str, Path](), [path]
    while waiting:
        file = waiting.pop()
        real = os.path.normpath(file)
        if real in found or not os.path.isfile(file):  # `Path.is_file` raises for a text too long to be a name
            continue
        found[real] = file
        imported, texts = map(sorted, _names(file))  # in order, since a file that has two names is known by one
        for base in dict.fromkeys((file.parent, root)):
            modules = [base.joinpath(*name.strip(".").split(".")) for name in imported if name.strip(".")]
            named = [base / text for text in texts if text.strip("./") and not text.startswith(_SYSTEM)]
            packages = [*modules, *(place for place in named if os.path.isfile(place / "__init__.py"))]
            waiting += [module.with_name(f"{module.name}.py") for module in modules]
            waiting += [*named, *(base / text.lstrip("/") for text in texts)]
            waiting += [part for package in packages if package.is_dir() for part in sorted(package.rglob("*.py"))]
    return sorted(found.values())


def contents(locations: Sequence[str]) -> dict[str, str]:
    """File name -> SHA-256, for rewards and the files that they load; `function` -> its name.

    A name is relative to the reward's folder, or absolute where the reward names the file so. With several rewards,
    the reward's number comes before each name.
    """
    found: dict[str, str] = {}
    for place, location in enumerate(locations, 1):
        path, function = split_function(location)
        prefix = f"{place}: " if len(locations) > 1 else ""
        folder = Path(path).parent
        for file in own_files(Path(path)):
            name = file.relative_to(folder) if file.is_relative_to(folder) else file
            with file.open("rb") as opened:
                found[f"{prefix}{name}"] = hashlib.file_digest(opened, "sha256").hexdigest()
        found |= {f"{prefix}function": function} if function else {}
    return found


def named_files(arguments: Any, name: str = "argument") -> dict[str, str]:
    """`argument <name>` -> SHA-256 of each file that a reward's arguments name, alone or in lists and dicts."""
    if isinstance(arguments, dict | list | tuple):
        pairs = arguments.items() if isinstance(arguments, dict) else enumerate(arguments)
        return {key: digest for at, value in pairs for key, digest in named_files(value, f"{name} {at}").items()}
    if not isinstance(arguments, str) or not os.path.isfile(arguments):
        return {}
    with open(arguments, "rb") as opened:
        return {name: hashlib.file_digest(opened, "sha256").hexdigest()}


def _names(file: Path) -> tuple[set[str], set[str]]:
    """Return what a Python file imports, relative imports with their dots, and its string literals.

    Both are empty for a file that cannot be read or parsed; its error is reported elsewhere.
    """
    try:
        tree = ast.parse(file.read_text(encoding="utf-8") if file.suffix == ".py" else "")
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
