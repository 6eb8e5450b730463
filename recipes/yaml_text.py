"""YAML as text: files and values are read by OmegaConf, and written so that they are read back as they are."""

import re
from copy import deepcopy
from functools import lru_cache
from io import StringIO
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from recipes.errors import RecipeError
from recipes.paths import ROOT

NOT_YAML = (yaml.YAMLError, OmegaConfBaseException, ValueError, AttributeError, LookupError, RecursionError)
"""Errors of the readers: ValueError for a number of thousands of digits, the next two for tags such as `!!bool x`, the
last for an anchor inside itself."""


def shown_path(path: Path) -> str:
    """A path as messages show it: relative to the repository's root if it is inside."""
    full = path.absolute()
    return str(full.relative_to(ROOT)) if full.is_relative_to(ROOT) else str(path)


def read(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file. Raises RecipeError where the file holds none, or names a key twice."""
    shown = shown_path(path)
    try:
        tree = deepcopy(_tree(path.read_text(encoding="utf-8")))
    except (OSError, *NOT_YAML) as error:
        is_deep = isinstance(error, RecursionError)
        problem = "it is nested too deep, or in itself" if is_deep else " ".join(str(error).split())
        raise RecipeError(f"cannot read {shown}: {problem}", where=str(path), fix="mend the file there") from error
    if not isinstance(tree, dict):
        raise RecipeError(f"{shown} has no keys", where=str(path), fix="write `key: value` lines there")
    return tree


@lru_cache(maxsize=64)
def _tree(text: str) -> Any:
    """Parse a text with OmegaConf, once per text; interpolations, which are verl's, stay unresolved."""
    return OmegaConf.to_container(OmegaConf.load(StringIO(text)), resolve=False)


def parse(text: str) -> Any:
    """Parse one value as YAML, or as Hydra's `{a:1}`; `1e-6` becomes a number, and text that is neither stays text."""
    try:
        tree: Any = OmegaConf.to_container(OmegaConf.from_dotlist([f"value={text}"]))
    except NOT_YAML:
        return text
    return _with_values(tree["value"], text)


def _with_values(value: Any, text: str) -> Any:
    """The value of a text, where YAML may have found an entry `a:1` to be a name `a:1` without a value."""
    if isinstance(value, list):
        return [_with_values(each, text) for each in value]
    if not isinstance(value, dict):
        return value
    whole = {}
    for name, each in value.items():
        key, colon, rest = str(name).partition(":")
        if each is None and colon and not any(f"{name}{mark}" in text for mark in "'\":"):
            whole[key] = rest if re.fullmatch(r"[0-9]+(:[0-9]+)+", rest) else parse(rest)  # 12:30, not 750
        else:
            whole[name] = _with_values(each, text)
    return whole


_SafeDumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class _Dumper(_SafeDumper):
    """OmegaConf's own writing puts each item of a list on a line; here a list takes one line."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_Dumper.add_representer(list, lambda dumper, data: dumper.represent_sequence("tag:yaml.org,2002:seq", data, True))
_Dumper.add_representer(  # several lines in double quotes, so that the value can stand on one line of a command
    str,
    lambda dumper, data: dumper.represent_scalar("tag:yaml.org,2002:str", data, style='"' if "\n" in data else None),
)
_Dumper.add_implicit_resolver(  # text such as 1e5, which OmegaConf reads as a number, needs quotes
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(?:\d[\d_]*\.?[\d_]*|\.\d[\d_]*)[eE][-+]?\d+$"), list("-+.0123456789")
)


def dump(tree: Any) -> str:
    """YAML text in the order of the keys; lists on one line. `read` gives the same tree."""
    return yaml.dump(tree, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000, default_flow_style=False)


def flow(value: Any) -> str:
    """One value as YAML on one line."""
    text = yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10**9, default_flow_style=True)
    return text.removesuffix("\n").removesuffix("\n...").strip()
