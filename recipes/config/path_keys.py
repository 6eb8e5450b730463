"""Make the paths in a recipe's keys absolute on load, and list them for the checks."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from glob import glob, has_magic
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from recipes.config.schema import Recipe, Source, leaves
from recipes.paths import ROOT, artifacts, outputs, split_function

_HUB = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?(@[\w.:-]+)?")
_SCHEME = re.compile(r"[a-z][a-z0-9+]*://")


@dataclass(frozen=True)
class PathKey:
    key: str
    path: str  # absolute; the unchanged name or URL where `on_hub`
    kind: str  # input, output, model or data (see `KeyInfo.path`)
    on_hub: bool  # whether `path` names something on a hub or behind a URL rather than a file here
    source: Source


def path_keys(recipe: Recipe) -> list[PathKey]:
    """Every key of the recipe that holds a path, in the schema's order; unset ones are left out.

    A reward function comes without its `:name`.
    """
    keys = []
    for key, leaf in leaves(Recipe).items():
        if leaf.info.path is None:
            continue
        value = recipe.value(key)
        for text in value if isinstance(value, list) else [value]:
            if text:
                path = split_function(text)[0] if key.endswith("reward_function") else text
                keys.append(PathKey(key, path, leaf.info.path, _on_hub(path, leaf.info.path), recipe.source_of(key)))
    return keys


def located(
    schema: type[BaseModel], values: Mapping[str, Any], sources: Mapping[str, Source]
) -> dict[str, str | list[str]]:
    """Return the keys that were set and hold paths, with absolute paths.

    `artifacts/...` is resolved in the folder of artifacts; `outputs/...`, where a file sets it, in that of outputs.
    Other relative paths in files start at the repository's root. Those in variables and arguments start at the working
    folder, or at the repository's root if they exist only under the root.
    """
    changed: dict[str, str | list[str]] = {}
    for key, leaf in leaves(schema).items():
        value, kind = values.get(key), leaf.info.path
        if kind is None or not value:
            continue
        by_user, with_function = key in sources and sources[key].by_user, key.endswith("reward_function")
        names = list(map(str, value)) if isinstance(value, list) else [str(value)]
        whole = ",".join(names)  # one name that has a comma, which a variable takes for several
        names = [whole] if kind == "data" and Path(whole).is_file() else names
        paths = [_absolute(name, kind, by_user, with_function) for name in names]
        if kind == "data":
            paths = [file for path in paths for file in _matching(path)]
        changed[key] = paths if isinstance(value, list) or len(paths) > 1 else paths[0]
    return changed


def _matching(path: str) -> list[str]:
    """The files that a pattern such as `train-*.parquet` names, in order; the path itself where it is no pattern."""
    found = sorted(glob(path)) if has_magic(path) and not Path(path).exists() else []
    return found or [path]


def _absolute(text: str, kind: str, by_user: bool, with_function: bool) -> str:
    path, name = split_function(text) if with_function else (text, None)
    if _on_hub(path, kind):
        return text
    expanded = Path(path).expanduser()
    if expanded.parts[:1] == ("artifacts",):
        full = artifacts().joinpath(*expanded.parts[1:])
    elif expanded.parts[:1] == ("outputs",) and not by_user:
        full = outputs().joinpath(*expanded.parts[1:])
    elif by_user and ((Path.cwd() / expanded).exists() or not (ROOT / expanded).exists()):
        full = Path.cwd() / expanded
    else:
        full = ROOT / expanded  # an absolute path stays itself
    return f"{full}:{name}" if name else str(full)


def _on_hub(text: str, kind: str) -> bool:
    """Return whether `text` is a URL or a hub's name: `Qwen/Qwen3-4B` for a model, `org/set@train` for data."""
    if _SCHEME.match(text):
        return True
    if kind == "data":
        return "@" in text and not any((base / text).is_file() for base in (Path.cwd(), ROOT))
    if kind != "model" or text.startswith((".", "~", "/", "artifacts/")):
        return False
    folder = text.split("/", 1)[0]  # a name that begins with an existing folder is a path, even if the rest is missing
    return bool(_HUB.fullmatch(text)) and not any((base / folder).is_dir() for base in (ROOT, Path.cwd()))
