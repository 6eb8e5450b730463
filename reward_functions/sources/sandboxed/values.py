"""Values as JSON: what the expressions of a program return goes out of its process as data, and becomes Python again in
a process where the program never ran. JSON holds no code, so a class of the program's arrives as no more than its name.

Scalars, texts and lists are themselves; everything else is `{kind: content}`, see `_described` and `BUILD`.
"""

from __future__ import annotations

import sys
from _json import encode_basestring_ascii as quoted  # importing json takes longer than starting Python
from _json import make_scanner

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing does too
    from typing import Any

MAX_DEPTH = 200
MAX_ITEMS = 5000  # of an iterator, which may be endless
LONG_INT = 1024  # bits; longer ones go as hexadecimal digits, since Python refuses long decimal ones
VIEWS = {"keys": type({}.keys()), "values": type({}.values()), "items": type({}.items())}
PLAIN = (list, tuple, set, frozenset, dict)


def encode(value: Any, depth: int = 0) -> str:
    """JSON for a value, in one line of ASCII.

    Raises:
        ValueError: nested more than `MAX_DEPTH` deep.
    """
    if depth > MAX_DEPTH:
        raise ValueError("nested too deeply")
    if value is None or value is True or value is False:
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int):
        whole = int.__index__(value)
        return f'{{"int": "{whole:x}"}}' if whole.bit_length() > LONG_INT else int.__repr__(whole)
    if isinstance(value, float):
        return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}.get(float.__repr__(value), float.__repr__(value))
    if isinstance(value, str):
        return quoted(str.__str__(value))
    if isinstance(value, list):
        return f"[{', '.join([encode(item, depth + 1) for item in list.__iter__(value)])}]"
    return encode_as(*_described(value), depth)


def encode_as(kind: str, content: Any, depth: int = 0) -> str:
    """JSON for one of the kinds of `BUILD`."""
    return f'{{"{kind}": {encode(content, depth + 1)}}}'


def _described(value: Any) -> tuple[str, Any]:
    """(kind, what it is made of) of a value that JSON does not have."""
    for kind in (tuple, set, frozenset):
        if isinstance(value, kind):
            return kind.__name__, list(kind.__iter__(value))
    if isinstance(value, dict):
        kinds = [name for name in ("Counter", "OrderedDict") if _is(value, "collections", name)]
        return kinds[0] if kinds else "dict", [[key, item] for key, item in dict.items(value)]
    for name, view in VIEWS.items():
        if isinstance(value, view):
            return name, [list(item) if name == "items" else item for item in value]
    if isinstance(value, (bytes, bytearray)):
        return "bytearray" if isinstance(value, bytearray) else "bytes", bytes(value).decode("latin-1")
    if isinstance(value, complex):
        return "complex", [value.real, value.imag]
    if isinstance(value, range):
        return "range", [value.start, value.stop, value.step]
    if _is(value, "enum", "Enum"):
        return "Enum", [type(value).__qualname__, str(value._name_)]
    if _is(value, "fractions", "Fraction"):
        return "Fraction", [value.numerator, value.denominator]
    if _is(value, "decimal", "Decimal"):
        return "Decimal", str(value)
    if _is(value, "collections", "deque"):
        return "deque", [list(value), value.maxlen]
    if _is(value, "array", "array"):
        return "array", [value.typecode, value.tolist()]
    if _is(value, "datetime", "timedelta"):
        return "timedelta", [value.days, value.seconds, value.microseconds]
    for name in ("datetime", "date", "time"):
        if _is(value, "datetime", name):
            return name, value.isoformat()
    if isinstance(value, type) and value.__module__ == "builtins":
        return "type", value.__name__
    if hasattr(type(value), "__next__"):
        items = [item for item, _ in zip(value, range(MAX_ITEMS + 1))]  # noqa: B905  # ends with the shorter one
        return "iterator", [items[:MAX_ITEMS], len(items) > MAX_ITEMS]
    return "object", [type(value).__name__, bool(value)]


def _is(value: Any, module: str, name: str) -> bool:
    """Is this an instance of a class of the standard library? Where its module was not imported, it is not."""
    kind = getattr(sys.modules.get(module), name, None)
    return isinstance(kind, type) and isinstance(value, kind)


class Object:
    """Stands for an object of a class of the program's; nothing but itself equals it."""

    def __init__(self, true: bool) -> None:
        self.true = bool(true)

    def __bool__(self) -> bool:
        return self.true


class Member:
    """A member of an enumeration of the program's; equal to the same member, as Python has it."""

    def __init__(self, names: list[str]) -> None:
        self.names = tuple(names)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Member) and self.names == other.names

    def __hash__(self) -> int:
        return hash(self.names)


def _iterator(items: list[Any], endless: bool) -> Any:
    yield from items
    if endless:
        raise ValueError(f"an iterator of more than {MAX_ITEMS} items")


def _object(name: str, true: bool) -> Object:
    CLASSES.append(str(name))
    return type(str(name), (Object,), {})(true)


def _standard(module: str, name: str) -> Any:
    return getattr(__import__(module), name)


STATUSES = ("memory_limit", "syntax_error")  # of what raised, besides "runtime_error"
CLASSES: list[str] = []  # of the objects in what is being decoded
BUILD = {
    "int": lambda digits: int(digits, 16),
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "dict": dict,
    "Counter": lambda pairs: _standard("collections", "Counter")(dict(pairs)),
    "OrderedDict": lambda pairs: _standard("collections", "OrderedDict")(pairs),
    "keys": lambda keys: dict.fromkeys(keys).keys(),
    "values": lambda values: dict(enumerate(values)).values(),
    "items": lambda pairs: dict(pairs).items(),
    "bytes": lambda text: text.encode("latin-1"),
    "bytearray": lambda text: bytearray(text, "latin-1"),
    "complex": lambda parts: complex(*parts),
    "range": lambda bounds: range(*bounds),
    "Enum": Member,
    "Fraction": lambda parts: _standard("fractions", "Fraction")(*parts),
    "Decimal": lambda text: _standard("decimal", "Decimal")(text),
    "deque": lambda parts: _standard("collections", "deque")(*parts),
    "array": lambda parts: _standard("array", "array")(*parts),
    "timedelta": lambda parts: _standard("datetime", "timedelta")(*parts),
    "datetime": lambda text: _standard("datetime", "datetime").fromisoformat(text),
    "date": lambda text: _standard("datetime", "date").fromisoformat(text),
    "time": lambda text: _standard("datetime", "time").fromisoformat(text),
    "type": lambda name: type(_standard("builtins", name)()),
    "iterator": lambda parts: _iterator(*parts),
    "object": lambda parts: _object(*parts),
    "raised": lambda status: Raised(status if status in STATUSES else "runtime_error"),
    "compared": lambda parts: Compared(*parts),
}


class Raised(Exception):
    """An expression of the program raised; its argument is the test's status."""


class Compared:
    """Two operands that are the program's, each as JSON, and what its own comparison says of them."""

    def __init__(self, left: str, right: str, claim: bool) -> None:
        self.left, self.right, self.claim = str(left), str(right), claim is True


class _Reading:
    """What the scanner of the standard library's json asks for."""

    strict, object_hook, parse_float, parse_int = True, None, float, int
    parse_constant = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": -float("inf")}.get

    @staticmethod
    def object_pairs_hook(pairs: list[tuple[str, Any]]) -> Any:
        ((kind, content),) = pairs
        return BUILD[kind](content)


_scan = make_scanner(_Reading)


def decode(text: str) -> Any:
    """The value that `encode` made this of.

    Raises:
        ValueError, TypeError, LookupError, AttributeError, ArithmeticError, StopIteration: the program wrote this
            itself, and it is no value's JSON.
    """
    value, end = _scan(text, 0)
    if end != len(text):
        raise ValueError("more than one value")
    return value
