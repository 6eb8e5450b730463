"""Reading YAML as users mean it: `1e-6` is a number, and a key that is there twice is a mistake."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from recipes.errors import RecipeError

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
