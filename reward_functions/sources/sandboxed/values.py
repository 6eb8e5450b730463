"""Values as JSON between the program's process and the one that executes tests. JSON holds no code: what a program
returns is rebuilt on the other side as exactly Python's own types, whatever classes the program derived from them.

Scalars, texts and lists are themselves; everything else is `{kind: content}`, see `KINDS`. What is no data (objects,
functions) is a number that only the program's process can look up, see `served.py` and `judged.py`.
"""

from __future__ import annotations

import builtins
import sys
from _json import encode_basestring_ascii as quoted  # importing json takes longer than starting Python
from _json import make_scanner

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing does too
    from collections.abc import Callable
    from typing import Any

MAX_DEPTH = 150
LONG_INT = 1024  # bits; longer ones go as hexadecimal digits, since Python refuses long decimal ones


def _standard(module: str, name: str) -> Callable[[Any], Any]:
    """Build an instance of a class of the standard library, whose module may not have been imported."""
    return lambda parts: getattr(__import__(module), name)(*parts)


def _from_iso(name: str) -> Callable[[str], Any]:
    return lambda text: getattr(__import__("datetime"), name).fromisoformat(text)


def _items(mapping: Any) -> list[list[Any]]:
    return [[key, item] for key, item in dict.items(mapping)]


# Kind -> its class, or the module of the standard library that has it; what a value is made of; a value made of that.
# The first that fits counts. Methods are called on the class, since a class of the program's may have others.
KINDS: dict[str, tuple[Any, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "tuple": (tuple, lambda value: list(tuple.__iter__(value)), tuple),
    "list": (list, lambda value: list(list.__iter__(value)), list),  # of a class that derives from it
    "str": (str, lambda value: str.__str__(value), str),
    "float": (float, lambda value: float.__float__(value), float),
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
    "slice": (slice, lambda value: [value.start, value.stop, value.step], lambda bounds: slice(*bounds)),
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
CONSTANTS = {"NotImplemented": NotImplemented, "Ellipsis": ...}
BUILD = {kind: build for kind, (_, _, build) in KINDS.items()} | {
    "int": lambda digits: int(digits, 16),
    "constant": CONSTANTS.__getitem__,
}
SCALARS = {None: "null", True: "true", False: "false"}
# An object of a class that derives from one of these is that value, and more; how to get at exactly the value.
PLAIN = {
    int: int.__index__,
    float: float.__float__,
    str: str.__str__,
    tuple: lambda value: tuple(tuple.__iter__(value)),
    bytes: lambda value: bytes.__getitem__(value, slice(None)),
    frozenset: lambda value: frozenset(frozenset.__iter__(value)),
}
MUTABLE = {  # what a call may change in place
    list: lambda value: list(list.__iter__(value)),
    dict: lambda value: dict(dict.items(value)),
    set: lambda value: set(set.__iter__(value)),
    bytearray: bytearray,
}
SHARED = (*MUTABLE,)


class Codec:
    """Writes and reads the messages of one side.

    Args:
        describe: (kind, content) of a value that is no data, or whose class is derived from data's; None for data.
        build: kind -> what makes a value of its content, besides `BUILD`.
        shares: whether containers in what this side writes may be changed by the other.
    """

    def __init__(
        self,
        describe: Callable[[Any], tuple[str, Any] | None],
        build: dict[str, Callable[[Any], Any]],
        shares: bool = False,
    ) -> None:
        self.describe, self.shares = describe, shares
        self.build = BUILD | build | {"&": self.register, "*": lambda number: self.shared[number]}
        self.shared: dict[int, Any] = {}  # number -> a container that is an argument of a call under way
        self.numbers: dict[int, int] = {}  # id of such a container -> its number
        self.count = 0
        self.strict, self.object_hook, self.parse_float, self.parse_int = True, None, float, int
        self.parse_constant = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": -float("inf")}.get
        self.scan = make_scanner(self)

    def register(self, pair: list[Any]) -> Any:
        """Note a container of the other side's, which is to hear of changes."""
        number, value = pair
        self.shared[number], self.numbers[id(value)] = value, number
        return value

    def object_pairs_hook(self, pairs: list[tuple[str, Any]]) -> Any:
        """What the scanner of the standard library's json asks for."""
        ((kind, content),) = pairs
        return self.build[kind](content)

    def decode(self, text: str) -> Any:
        """The value that `encode` made this of; any exception where a program wrote it itself."""
        value, end = self.scan(text, 0)
        if end != len(text):
            raise ValueError("more than one value")
        return value

    def encode(self, value: Any, depth: int = 0) -> str:
        """JSON for a value, in one line of ASCII. Raises ValueError: nested more than `MAX_DEPTH` deep."""
        kind = type(value)
        if kind is str:
            return quoted(value)
        if kind is bool or value is None:
            return SCALARS[value]
        if kind is int:
            return f'{{"int": "{value:x}"}}' if value.bit_length() > LONG_INT else int.__repr__(value)
        if kind is float:
            text = float.__repr__(value)
            return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}.get(text, text)
        if depth > MAX_DEPTH:
            raise ValueError("nested too deeply")
        if id(value) in self.numbers:
            return f'{{"*": {self.numbers[id(value)]}}}'
        if self.shares and isinstance(value, SHARED):
            self.count += 1
            number, content = self.count, self.content(value, depth + 1)
            self.register([number, value])
            return f'{{"&": [{number}, {content}]}}'
        return self.content(value, depth)

    def content(self, value: Any, depth: int = 0) -> str:
        """JSON for what is no scalar, whether or not it has a number."""
        if type(value) is list:
            return f"[{', '.join([self.encode(item, depth + 1) for item in value])}]"
        kind, content = self.describe(value) or plain(value)
        return f'{{"{kind}": {self.encode_part(content, depth + 1)}}}'

    def encode_part(self, value: Any, depth: int) -> str:
        """JSON for a list that only the encoding made: it has no identity."""
        return self.content(value, depth) if type(value) is list else self.encode(value, depth)


def plain(value: Any) -> tuple[str, Any]:
    """(kind, what it is made of) of data that JSON does not have. Raises TypeError: it is none."""
    if isinstance(value, int):
        return "int", f"{int.__index__(value):x}"
    for name, constant in CONSTANTS.items():
        if value is constant:
            return "constant", name
    for kind, (place, parts, _) in KINDS.items():
        made_by = place if isinstance(place, type) else getattr(sys.modules.get(place), kind, None)
        if isinstance(made_by, type) and isinstance(value, made_by):  # a module that was not imported made nothing
            return kind, parts(value)
    raise TypeError(f"{type(value).__name__} is no data")


def is_data(value: Any) -> bool:
    """Is this of a type that `plain` or JSON knows, exactly?"""
    kind = type(value)
    if kind in (str, int, float, bool, list, type(None)) or value is NotImplemented or value is ...:
        return True
    place = KINDS.get(kind.__name__.removeprefix("dict_"), (None,))[0]
    return kind is (
        place if place is None or isinstance(place, type) else vars(sys.modules.get(place, sys)).get(kind.__name__)
    )


def builtin(value: Any) -> str:
    """The name under which Python has this type or function, "" where it is none of its builtins."""
    name = getattr(value, "__name__", None) if isinstance(value, (type, type(len))) else None
    return name if isinstance(name, str) and vars(builtins).get(name) is value else ""
