"""Lists and objects written as text: as JSON, and as Python, pandas and NumPy print them into a cell."""

import ast
import io
import json
import re
import tokenize
from collections.abc import Iterator
from typing import Any

_WORDS = {"nan": None, "inf": float("inf"), "null": None, "true": True, "false": False}
_MEANT = re.compile(r"""\s*[\[{][\s\[{(]*['"].*[\]}]\s*""", re.DOTALL)
_ENDS = (tokenize.STRING, tokenize.NUMBER, tokenize.NAME)
_NO_TEXT = (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)

DEEPEST = 100
"""Most lists and objects of a row in one another: Python ends at some hundreds, and each reader at another."""


def is_too_deep(value: Any) -> bool:
    """Return whether more than `DEEPEST` lists and objects are in one another."""
    inside = [value]
    for _ in range(DEEPEST + 1):
        held = [each for each in inside if isinstance(each, list | dict)]
        if not held:
            return False
        inside = [part for each in held for part in (each.values() if isinstance(each, dict) else each)]
    return True


def written(value: Any) -> Any:
    """The list or object that a text writes, in any of these forms; the value itself where it is no such text."""
    if not isinstance(value, str):
        return value
    found = in_json(value)
    return value if (found := in_python(value) if found is None else found) is None else found


def in_json(text: str) -> list[Any] | dict[str, Any] | None:
    """The list or object that JSON writes as this text."""
    if not text.lstrip().startswith(("[", "{")):  # ten times as fast as JSON's error
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, list | dict) and not is_too_deep(value) else None


def in_python(text: str) -> list[Any] | dict[str, Any] | None:
    """The list or object that Python or NumPy prints as this text, for instance `[{'a': array([1, 2], dtype=int64)}]`.

    None for every other text, also for a list that NumPy shortened with `...`.
    """
    if not text.lstrip().startswith(("[", "{")):
        return None
    try:
        value = _value(ast.parse(" ".join(_with_commas(text.strip())), mode="eval").body)
    except (SyntaxError, ValueError, tokenize.TokenError, RecursionError, MemoryError):
        return None
    return value if isinstance(value, list | dict) else None


def is_meant_as_one(text: str) -> bool:
    """Return whether a text can only be meant as a list or object of texts: bracket, quote, bracket at its end."""
    return _MEANT.fullmatch(text) is not None


def _with_commas(text: str) -> Iterator[str]:
    """The tokens of a printed value, with the commas that NumPy leaves out: ['a' 'b'] would be one text to Python."""
    after_value, end = False, (1, 0)
    for kind, word, start, behind, _ in tokenize.generate_tokens(io.StringIO(text).readline):
        if kind in _NO_TEXT:
            continue
        if after_value and start != end and (kind in _ENDS or word in ("[", "{", "(", "-")):  # [0-9] is no list
            yield ","
        yield word
        after_value, end = kind in _ENDS or word in ("]", "}", ")"), behind


def _value(node: ast.expr) -> Any:
    """The value of an expression of constants. Raises ValueError for any other."""
    match node:
        case ast.Constant(value=str() | int() | float() | None):
            return node.value
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_value(item) for item in items]
        case ast.Dict(keys=keys, values=values) if None not in keys:
            return dict(zip(map(str, map(_value, filter(None, keys))), map(_value, values), strict=True))
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return -number
        case ast.Name(id=name) if name in _WORDS:
            return _WORDS[name]
        case ast.Attribute(value=ast.Name(id="np"), attr="True_" | "False_" as name):
            return name == "True_"
        case ast.Call(func=ast.Name(id="array" | "list") | ast.Attribute(value=ast.Name(id="np")), args=[item]):
            return _value(item)
    raise ValueError(f"{ast.unparse(node)} is no value")
