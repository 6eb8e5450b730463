"""Text to values: YAML files, the text of a variable or an argument, and "did you mean"."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import SequenceMatcher, get_close_matches
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import yaml

from recipes.errors import RecipeError


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known name most like `name`, or None. Whole dotted paths are compared, then their last parts.

    A key at the wrong place (`rollout.n` for `worker.rollout.n`) is found by its ending.
    """
    names = list(known)
    ending = [other for other in names if other.endswith(f".{name}")]
    if len(ending) == 1:
        return ending[0]
    last = name.rsplit(".", 1)[-1]
    moved = [other for other in names if other.rsplit(".", 1)[-1] == last]
    if moved:
        return max(moved, key=lambda other: SequenceMatcher(None, name, other).ratio())
    whole = get_close_matches(name, names, n=1, cutoff=0.8)
    if whole:
        return whole[0]
    group = name.rpartition(".")[0]
    siblings = {other.rsplit(".", 1)[-1]: other for other in names if other.rpartition(".")[0] == group}
    close = get_close_matches(last, siblings, n=1, cutoff=cutoff)
    if close:
        return siblings[close[0]]
    anywhere = get_close_matches(name, names, n=1, cutoff=cutoff)
    return anywhere[0] if anywhere else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`did you mean X?`, or an empty text."""
    found = nearest(name, known)
    return f"did you mean {found}?" if found else ""


def edits(left: str, right: str) -> int:
    """Insertions, deletions, replacements and swaps of neighbours between two texts (optimal string alignment)."""
    before: list[int] = []
    row = list(range(len(right) + 1))
    for i, a in enumerate(left, 1):
        older, before, row = before, row, [i]
        for j, b in enumerate(right, 1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (a != b))
            if i > 1 and j > 1 and a == right[j - 2] and left[i - 2] == b:
                cost = min(cost, older[j - 2] + 1)
            row.append(cost)
    return row[-1]


_Base: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_FLOAT = re.compile(r"^[-+]?(?:\d[\d_]*\.?[\d_]*|\.\d[\d_]*)[eE][-+]?\d+$")


class _Loader(_Base):  # type: ignore[misc, valid-type]
    """YAML 1.1 without its traps: exponents need no point, and duplicate keys are refused."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: dict[Any, int] = {}
        for key_node, _ in node.value:
            name = self.construct_object(key_node, deep=True)
            line = key_node.start_mark.line + 1
            if isinstance(name, str) and name in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {name!r} is already on line {seen[name]}", key_node.start_mark
                )
            seen[name] = line
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+.0123456789"))


def parse(text: str) -> Any:
    """One YAML value. Raises yaml.YAMLError."""
    return yaml.load(text, Loader=_Loader)


def read(path: Path, shown: str) -> dict[str, Any]:
    """The mapping in a YAML file; `shown` is how messages call the file. Raises RecipeError if it is not one."""
    try:
        tree = parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RecipeError(f"cannot read {shown}: {error.strerror}", where=str(path)) from error
    except UnicodeDecodeError as error:
        raise RecipeError(f"{shown} is not text in UTF-8", where=str(path)) from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "not readable"
        raise RecipeError(f"{shown} is not valid YAML: {problem}", where=f"{path}{line}") from error
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise RecipeError(f"{shown} must hold keys and values, not a {type(tree).__name__}", where=str(path))
    return tree


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """Mappings in block style, lists on one line, no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _list(dumper: Any, data: list[Any]) -> yaml.Node:
    return dumper.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=True)


def _text(dumper: Any, data: str) -> yaml.Node:
    """Text of several lines in double quotes, where a line's end is an escape."""
    plain = yaml.SafeDumper.represent_str
    return dumper.represent_scalar("tag:yaml.org,2002:str", data, style='"') if "\n" in data else plain(dumper, data)


_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+.0123456789"))  # text like 0e0 gets quotes
_Dumper.add_representer(list, _list)
_Dumper.add_representer(str, _text)


def dump(tree: Any) -> str:
    """YAML text in the order of the keys; lists on one line."""
    return yaml.dump(tree, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000, default_flow_style=False)


def flow(value: Any) -> str:
    """One value as YAML on one line."""
    text = yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10**9, default_flow_style=True)
    return text.removesuffix("\n").removesuffix("\n...").strip()


_TRUE, _FALSE, _NULL = ("1", "true", "yes", "on"), ("0", "false", "no", "off"), ("null", "none", "~")


def _parts(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)


def parse_as(text: str, annotation: Any) -> Any:
    """Read `text` as the type asks: lists may be joined by commas, truth may be 1 or yes, text stays as it is.

    What does not fit is returned as it was read, so that the schema's check can name the type it wants.
    """
    parts = _parts(annotation)
    word = text.strip()
    if type(None) in parts and word.lower() in _NULL:
        return None
    if bool in parts and word.lower() in _TRUE + _FALSE:
        return word.lower() in _TRUE
    lists = [part for part in parts if get_origin(part) is list]
    if lists and (word.startswith("[") or str not in parts):
        return _list_text(word, get_args(lists[0])[0])
    if str in parts:
        return text
    if any(get_origin(part) is Literal for part in parts):
        return word
    return _plain(word)


def _list_text(word: str, item: Any) -> Any:
    read = _plain(word) if word.startswith("[") else [part.strip() for part in word.split(",") if part.strip()]
    return [parse_as(str(part), item) for part in read] if isinstance(read, list) else read


def _plain(word: str) -> Any:
    try:
        return parse(word)
    except yaml.YAMLError:
        return word
