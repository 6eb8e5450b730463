"""The identity of a reward: the files that it is made of, found without running it, and their digests."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recipes.config.rewards import WEIGHTED
from recipes.files import json_sha256, sha256
from recipes.paths import split_function
from recipes.rewards.loading import NAMES, names_in

_SYSTEM = ("/bin/", "/dev/", "/etc/", "/lib/", "/lib64/", "/proc/", "/sbin/", "/sys/", "/usr/")
"""Files of the system, which differ between machines and are no part of a reward."""


def reward_digest(location: str, arguments: Mapping[str, Any], engine: str) -> str:
    """A digest of a reward's files, functions and arguments; of a weighted sum, its weights are arguments."""
    given = {name: value for name, value in arguments.items() if name != "rewards" or Path(location) != WEIGHTED}
    return json_sha256([reward_files(location, arguments, engine), given])


def reward_files(location: str, arguments: Mapping[str, Any], engine: str) -> dict[str, str]:
    """The parts of a reward, as `reward_call` returns it: file name -> SHA-256, `function` -> its name, `argument
    <name>` -> SHA-256 of the file.

    A name is relative to the reward's folder, or absolute where the reward names the file so. With several rewards,
    the reward's number comes before each name.
    """
    given = dict(arguments)
    parts = given.pop("rewards") if Path(location) == WEIGHTED else [location]
    found: dict[str, str] = {}
    for place, part in enumerate(parts, 1):
        path, function = split_function(part)
        prefix = f"{place}: " if len(parts) > 1 else ""
        folder = Path(path).parent
        for file in own_files(Path(path)):
            name = file.relative_to(folder) if file.is_relative_to(folder) else file
            found[f"{prefix}{name}"] = sha256(file)
        if function and NAMES[engine] != (function,):  # the only function that the engine would look for is no choice
            found[f"{prefix}function"] = function
    return found | named_files(given)


def named_files(arguments: Any, name: str = "argument") -> dict[str, str]:
    """`argument <name>` -> SHA-256 of each file that a reward's arguments name, alone or in lists and dicts."""
    if isinstance(arguments, dict | list | tuple):
        pairs = arguments.items() if isinstance(arguments, dict) else enumerate(arguments)
        return {key: digest for at, value in pairs for key, digest in named_files(value, f"{name} {at}").items()}
    return {name: sha256(Path(arguments))} if isinstance(arguments, str) and os.path.isfile(arguments) else {}


def own_files(path: Path) -> list[Path]:
    """A file, the Python files of its folder that it loads, and the files that it opens, found by parsing it.

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
        imported, texts = map(sorted, names_in(file))  # in order, since a file that has two names is known by one
        for base in dict.fromkeys((file.parent, root)):
            modules = [base.joinpath(*name.strip(".").split(".")) for name in imported if name.strip(".")]
            named = [base / text for text in texts if text.strip("./") and not text.startswith(_SYSTEM)]
            packages = [*modules, *(place for place in named if os.path.isfile(place / "__init__.py"))]
            waiting += [module.with_name(f"{module.name}.py") for module in modules]
            waiting += [*named, *(base / text.lstrip("/") for text in texts)]
            waiting += [part for package in packages if package.is_dir() for part in sorted(package.rglob("*.py"))]
    return sorted(found.values())
