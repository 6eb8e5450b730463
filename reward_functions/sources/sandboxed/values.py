"""Values as JSON: what the expressions of a program return goes out of its process as data, and becomes Python again in
a process where the program never ran. JSON holds no code, so a class of the program's arrives as no more than its name.

Scalars, texts and lists are themselves; everything else is `{kind: content}`, see `KINDS`.
"""

from __future__ import annotations

import sys
from _json import encode_basestring_ascii as quoted  # importing json takes longer than starting Python
from _json import make_scanner

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing does too
    from collections.abc import Callable
    from typing import Any

MAX_DEPTH = 200
MAX_ITEMS = 5000  # of an iterator, which may be endless
LONG_INT = 1024  # bits; longer ones go as hexadecimal digits, since Python refuses long decimal ones


def encode(value: Any, depth: int = 0) -> str:
    """JSON for a value, in one line of ASCII. Raises ValueError: nested more than `MAX_DEPTH` deep."""
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
    for kind, (place, parts, _) in KINDS.items():
        made_by = place if isinstance(place, type) else getattr(sys.modules.get(place), kind, None)
        if isinstance(made_by, type) and isinstance(value, made_by):  # a module that was not imported made nothing
            return kind, parts(value)
    if isinstance(value, type) and value.__module__ == "builtins":
        return "type", value.__name__
    if hasattr(type(value), "__next__"):
        items = [item for item, _ in zip(value, range(MAX_ITEMS + 1))]  # noqa: B905  # ends with the shorter one
        return "iterator", [items[:MAX_ITEMS], len(items) > MAX_ITEMS]
    return "object", [type(value).__name__, bool(value)]


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


def _standard(module: str, name: str) -> Callable[[Any], Any]:
    """Builds an instance of a class of the standard library, whose module may not have been imported."""
    return lambda parts: getattr(__import__(module), name)(*parts)


def _from_iso(name: str) -> Callable[[str], Any]:
    return lambda text: getattr(__import__("datetime"), name).fromisoformat(text)


def _items(mapping: Any) -> list[list[Any]]:
    return [[key, item] for key, item in dict.items(mapping)]


# Kind -> its class, or the module of the standard library that has it; what a value is made of; a value made of that.
# The first that fits counts.
KINDS = {
    "tuple": (tuple, lambda value: list(tuple.__iter__(value)), tuple),
    "set": (set, lambda value: list(set.__iter__(value)), set),
    "frozenset": (frozenset, lambda value: list(frozenset.__iter__(value)), frozenset),
    "Counter": ("collections", _items, lambda pairs: _standard("collections", "Counter")([dict(pairs)])),
    "OrderedDict": ("collections", _items, lambda pairs: _standard("collections", "OrderedDict")([pairs])),
    "dict": (dict, _items, dict),
    "keys": (type({}.keys()), list, lambda keys: dict.fromkeys(keys).keys()),
    "values": (type({}.values()), list, lambda values: dict(enumerate(values)).values()),
    "items": (type({}.items()), lambda view: [list(item) for item in view], lambda pairs: dict(pairs).items()),
    "bytearray": (bytearray, lambda value: bytes(value).decode("latin-1"), lambda text: bytearray(text, "latin-1")),
    "bytes": (bytes, lambda value: bytes(value).decode("latin-1"), lambda text: text.encode("latin-1")),
    "complex": (complex, lambda value: [value.real, value.imag], lambda parts: complex(*parts)),
    "range": (range, lambda value: [value.start, value.stop, value.step], lambda bounds: range(*bounds)),
    "Enum": ("enum", lambda value: [type(value).__qualname__, str(value._name_)], Member),
    "Fraction": ("fractions", lambda value: [value.numerator, value.denominator], _standard("fractions", "Fraction")),
    "Decimal": ("decimal", str, lambda text: _standard("decimal", "Decimal")([text])),
    "deque": ("collections", lambda value: [list(value), value.maxlen], _standard("collections", "deque")),
    "array": ("array", lambda value: [value.typecode, value.tolist()], _standard("array", "array")),
    "timedelta": (
        "datetime",
        lambda value: [value.days, value.seconds, value.microseconds],
        _standard("datetime", "timedelta"),
    ),
    "datetime": ("datetime", lambda value: value.isoformat(), _from_iso("datetime")),
    "date": ("datetime", lambda value: value.isoformat(), _from_iso("date")),
    "time": ("datetime", lambda value: value.isoformat(), _from_iso("time")),
}
STATUSES = ("memory_limit", "syntax_error")  # of what raised, besides "runtime_error"
CLASSES: list[str] = []  # of the objects in what is being decoded
BUILD = {kind: build for kind, (_, _, build) in KINDS.items()} | {
    "int": lambda digits: int(digits, 16),
    "type": lambda name: type(getattr(__import__("builtins"), name)()),
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
