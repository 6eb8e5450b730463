"""Values as JSON between a program's process and those that judge it. JSON holds no code: what a program returns is
rebuilt on the other side as exactly Python's own types, whatever classes the program derived from them.

Scalars, texts and lists are themselves; everything else is `{kind: content}`, see `KINDS`. What is no data (objects,
functions) is a number that only the program's process can look up.
"""

from __future__ import annotations

import sys
from _json import encode_basestring_ascii as quoted  # importing json takes longer than starting Python
from _json import make_scanner

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing does too
    from collections.abc import Callable
    from typing import Any

MAX_DEPTH = 150
LONG_INT = 1024  # bits; longer ones go as hexadecimal digits, since Python refuses long decimal ones
MUTABLE = (list, dict, set, bytearray)  # what a call may change in place
FAILURES = ("runtime_error", "syntax_error", "memory_limit")
SCALARS = {None: "null", True: "true", False: "false"}


def _standard(module: str, name: str) -> Callable[[Any], Any]:
    """Build an instance of a class of the standard library, whose module may not have been imported."""
    return lambda parts: getattr(__import__(module), name)(*parts)


def _from_iso(name: str) -> Callable[[str], Any]:
    return lambda text: getattr(__import__("datetime"), name).fromisoformat(text)


def _flat(mapping: Any) -> list[Any]:
    return [each for pair in dict.items(mapping) for each in pair]


def _mapping(flat: list[Any]) -> dict[Any, Any]:
    return dict(zip(flat[::2], flat[1::2]))  # noqa: B905


def _seconds(value: Any) -> list[int]:
    return [value.days, value.seconds, value.microseconds]


# Kind -> its class, or the module of the standard library that has it; what a value is made of; a value made of that.
# The first that fits counts. Methods are called on the class, since a class of the program's may have others.
KINDS: dict[str, tuple[Any, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "tuple": (tuple, lambda value: list(tuple.__iter__(value)), tuple),
    "list": (list, lambda value: list(list.__iter__(value)), list),  # of a class that derives from it
    "str": (str, lambda value: str.__str__(value), str),
    "float": (float, lambda value: float.__float__(value), float),
    "set": (set, lambda value: list(set.__iter__(value)), set),
    "frozenset": (frozenset, lambda value: list(frozenset.__iter__(value)), frozenset),
    "Counter": ("collections", _flat, lambda flat: _standard("collections", "Counter")([_mapping(flat)])),
    "OrderedDict": ("collections", _flat, lambda flat: _standard("collections", "OrderedDict")([_mapping(flat)])),
    "dict": (dict, _flat, _mapping),
    "keys": (type({}.keys()), list, lambda keys: dict.fromkeys(keys).keys()),
    "values": (type({}.values()), list, lambda values: dict(enumerate(values)).values()),
    "items": (type({}.items()), list, lambda pairs: dict(pairs).items()),
    "bytearray": (bytearray, lambda value: bytes(value).decode("latin-1"), lambda text: bytearray(text, "latin-1")),
    "bytes": (bytes, lambda value: bytes(value).decode("latin-1"), lambda text: text.encode("latin-1")),
    "complex": (complex, lambda value: [value.real, value.imag], lambda parts: complex(*parts)),
    "range": (range, lambda value: [value.start, value.stop, value.step], lambda bounds: range(*bounds)),
    "Fraction": ("fractions", lambda value: [value.numerator, value.denominator], _standard("fractions", "Fraction")),
    "Decimal": ("decimal", str, lambda text: _standard("decimal", "Decimal")([text])),
    "deque": ("collections", lambda value: [list(value), value.maxlen], _standard("collections", "deque")),
    "array": ("array", lambda value: [value.typecode, value.tolist()], _standard("array", "array")),
    "timedelta": ("datetime", _seconds, _standard("datetime", "timedelta")),
    "datetime": ("datetime", lambda value: value.isoformat(), _from_iso("datetime")),
    "date": ("datetime", lambda value: value.isoformat(), _from_iso("date")),
    "time": ("datetime", lambda value: value.isoformat(), _from_iso("time")),
}
BUILD = {kind: build for kind, (_, _, build) in KINDS.items()} | {"int": lambda digits: int(digits, 16)}


class Codec:
    """Writes and reads the messages of one side.

    Args:
        describe: (kind, content) of a value that is no data. Raises TypeError: it cannot be sent.
        build: kind -> what makes a value of such a content.
        shares: whether the other side may change the containers that this one writes.
    """

    def __init__(
        self,
        describe: Callable[[Any], tuple[str, Any]],
        build: dict[str, Callable[[Any], Any]],
        shares: bool = False,
    ) -> None:
        self.describe, self.shares = describe, shares
        self.build = BUILD | build | {"&": self.register, "*": lambda number: self.shared[number]}
        self.shared: dict[int, Any] = {}  # number -> a container that is an argument of the call under way
        self.numbers: dict[int, int] = {}  # id of such a container -> its number
        self.strict, self.object_hook, self.parse_float, self.parse_int = True, None, float, int
        self.parse_constant = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": -float("inf")}.get
        self.scan = make_scanner(self)  # type: ignore[arg-type]  # it takes whatever has the attributes above

    def register(self, pair: list[Any]) -> Any:
        """Note a container that both sides have."""
        number, value = pair
        self.shared[number], self.numbers[id(value)] = value, number
        return value

    def forget(self) -> None:
        """Forget the containers of the last call."""
        self.shared.clear()
        self.numbers.clear()

    def object_pairs_hook(self, pairs: list[tuple[str, Any]]) -> Any:
        """Build a value; the scanner of the standard library's json asks for it."""
        ((kind, content),) = pairs
        return self.build[kind](content)

    def decode(self, text: str) -> Any:
        """Return the value that `encode` made this of. Raises ValueError: nothing that it wrote."""
        try:
            value, end = self.scan(text, 0)
        except Exception as error:  # allowed: a program may have written anything, and building it then does anything
            raise ValueError("no message") from error
        if end != len(text):
            raise ValueError("more than one value")
        return value

    def message(self, operation: str, arguments: Any, named: dict[str, Any]) -> str:
        """Return what `served.py` answers."""
        given = ", ".join([self.encode(each) for each in arguments])
        by_name = ", ".join([f"[{quoted(name)}, {self.encode(each)}]" for name, each in named.items()])
        return f'["{operation}", [{given}], [{by_name}]]'

    def encode(self, value: Any, depth: int = 0) -> str:
        """Return JSON for a value, in one line of ASCII.

        Raises:
            ValueError: nested more than `MAX_DEPTH` deep.
            TypeError: no data, and `describe` has nothing for it.
        """
        kind = type(value)
        if kind is str:
            return quoted(value)
        if kind is bool or value is None:
            return SCALARS[value]
        if kind is int and value.bit_length() <= LONG_INT:
            return int.__repr__(value)
        if kind is float:
            text = float.__repr__(value)
            return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}.get(text, text)
        if depth > MAX_DEPTH:
            raise ValueError("nested too deeply")
        if id(value) in self.numbers:
            return f'{{"*": {self.numbers[id(value)]}}}'
        if self.shares and issubclass(kind, MUTABLE):
            number = len(self.shared)
            self.register([number, value])
            return f'{{"&": [{number}, {self.content(value, depth + 1)}]}}'
        return self.content(value, depth)

    def content(self, value: Any, depth: int = 0) -> str:
        """Return JSON for what is no scalar, whether or not it has a number."""
        if type(value) is list:
            return f"[{', '.join([self.encode(item, depth + 1) for item in value])}]"
        kind, parts = plain(value) or self.describe(value)
        return f'{{"{kind}": {self.content(parts, depth) if type(parts) is list else self.encode(parts)}}}'


def plain(value: Any) -> tuple[str, Any] | None:
    """Return (kind, what it is made of) of data that JSON does not have; None for what is no data."""
    of = type(value)
    if issubclass(of, int):
        return "int", f"{int.__index__(value):x}"
    for kind, (place, parts, _) in KINDS.items():
        made_by = place if isinstance(place, type) else getattr(sys.modules.get(place), kind, None)
        if isinstance(made_by, type) and issubclass(of, made_by):  # a module that was not imported made nothing
            return kind, parts(value)
    return None


def failure(error: BaseException) -> str:
    """Return the status of a test in which the program raised this."""
    if isinstance(error, MemoryError):
        return "memory_limit"
    return "syntax_error" if isinstance(error, SyntaxError) else "runtime_error"


def data_names() -> list[str]:
    """Return the names of all methods and attributes that data has."""
    kinds = [
        getattr(__import__(place), kind) if isinstance(place, str) else place for kind, (place, *_) in KINDS.items()
    ]
    return sorted({name for kind in (*kinds, int) for name in dir(kind)})
