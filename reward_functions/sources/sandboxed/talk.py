"""The protocol between a program and its tests, which run in two processes.

Messages are JSON, which holds no code: what a program returns is rebuilt on the other side as exactly Python's own
types, whatever classes the program derived from them. Scalars, texts and lists are encoded as themselves; everything
else is `{kind: content}`, see `KINDS`. An object or function is encoded as a number, which only the program's process
can resolve. Three parts: `Codec`, the messages; `Server`, the program's side; `Talk`, the tests' side, where stand-ins
replace the program's objects. Tests compare data with Python's own `==`, which the program cannot override.
"""

from __future__ import annotations

import _operator
import builtins
import io
import sys
from _json import encode_basestring_ascii as quoted  # importing json takes longer than starting Python
from _json import make_scanner

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing takes longer than starting Python, too
    from collections.abc import Callable, Iterable
    from fractions import Fraction
    from typing import Any

    # For asserts: a test's text, the names that it takes from the program, and those from the standard library (name ->
    # "module.name"). For calls: the function's name, its arguments, and the value that it should return; a tuple of one
    # stands for its value and for the list that holds it.
    Test = tuple[str, list[Any], Any]


MAX_DEPTH = 150
MAX_ITEMS = 100_000  # of an iterator, which is sent as a whole
MAX_CONSTANTS = 1000  # calls in a test that runs against a constant instead of the program
LONG_INT = 1024  # bits; longer ones go as hexadecimal digits, since Python refuses long decimal ones
MAX_EXPONENT = 5000  # of a Decimal; with an exponent of 10 ** 9 its Fraction would fill the memory
INFINITY = float("inf")
MUTABLE = (list, dict, set, bytearray)  # what a call may change in place
FAILURES = ("runtime_error", "syntax_error", "memory_limit")
STOPS = (StopIteration, StopAsyncIteration, GeneratorExit)  # they would silently end a loop in the test
SCALARS = {None: "null", True: "true", False: "false"}


def _standard(module: str, name: str) -> Callable[[Any], Any]:
    """Return a builder of instances of a standard-library class; it imports the module when it is called."""
    return lambda parts: getattr(__import__(module), name)(*parts)


def _from_iso(name: str) -> Callable[[str], Any]:
    return lambda text: getattr(__import__("datetime"), name).fromisoformat(text)


def _flat(mapping: Any) -> list[Any]:
    return [each for pair in dict.items(mapping) for each in pair]


def _mapping(flat: list[Any]) -> dict[Any, Any]:
    return dict(zip(flat[::2], flat[1::2]))  # noqa: B905


# Kind -> (its class, or the standard-library module that has it; a function from value to content; one from content to
# value). The first match counts. For tuples, lists, texts, floats, sets and dicts the methods of Python's own class are
# called, since a class of the program's may override them.
KINDS: dict[str, tuple[Any, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "tuple": (tuple, lambda value: list(tuple.__iter__(value)), tuple),
    "list": (list, lambda value: list(list.__iter__(value)), list),  # a subclass; JSON has lists
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
    "timedelta": ("datetime", lambda it: [it.days, it.seconds, it.microseconds], _standard("datetime", "timedelta")),
    "datetime": ("datetime", lambda value: value.isoformat(), _from_iso("datetime")),
    "date": ("datetime", lambda value: value.isoformat(), _from_iso("date")),
}
BUILD = {kind: build for kind, (_, _, build) in KINDS.items()} | {"int": lambda digits: int(digits, 16)}


class Codec:
    """Writes and reads the messages of one side.

    Args:
        describe: returns (kind, content) of a value that is not data, or raises TypeError if it cannot be sent.
        build: kind -> function that builds a value from its content.
        shares: whether the other side may change the containers that this one writes.
    """

    def __init__(
        self, describe: Callable[[Any], tuple[str, Any]], build: dict[str, Callable[[Any], Any]], shares: bool = False
    ) -> None:
        self.describe, self.shares = describe, shares
        self.build = BUILD | build | {"&": self.register, "*": lambda number: self.shared[number]}
        self.shared: dict[int, Any] = {}  # number -> a container that is an argument of the call under way
        self.numbers: dict[int, int] = {}  # id of such a container -> its number
        self.strict, self.object_hook, self.parse_float, self.parse_int = True, None, float, int
        self.parse_constant = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": -float("inf")}.get
        self.scan = make_scanner(self)  # type: ignore[arg-type]  # make_scanner needs only these attributes

    def register(self, pair: list[Any]) -> Any:
        number, value = pair
        self.shared[number], self.numbers[id(value)] = value, number
        return value

    def forget(self) -> None:
        self.shared.clear()
        self.numbers.clear()

    def object_pairs_hook(self, pairs: list[tuple[str, Any]]) -> Any:
        """Build a value; json's scanner calls this for every object."""
        ((kind, content),) = pairs
        return self.build[kind](content)

    def decode(self, text: str) -> Any:
        """Decode a text that `encode` wrote; any other text, which a program may have written, may raise any error."""
        value, end = self.scan(text, 0)
        if end != len(text):
            raise ValueError("more than one value")
        return value

    def message(self, operation: str, arguments: Any, named: dict[str, Any]) -> str:
        given = ", ".join([self.encode(each) for each in arguments])
        by_name = ", ".join([f"[{quoted(name)}, {self.encode(each)}]" for name, each in named.items()])
        return f'["{operation}", [{given}], [{by_name}]]'

    def encode(self, value: Any, depth: int = 0) -> str:
        """Return JSON for a value, in one line of ASCII. Raises ValueError: it is nested more than `MAX_DEPTH` deep."""
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
        """Encode the whole content of a value that is not a scalar, even if the value has a reference number."""
        if type(value) is list:
            return f"[{', '.join([self.encode(item, depth + 1) for item in value])}]"
        kind, parts = plain(value) or self.describe(value)
        return f'{{"{kind}": {self.content(parts, depth) if type(parts) is list else self.encode(parts)}}}'


def plain(value: Any) -> tuple[str, Any] | None:
    """Return (kind, content) of data that JSON has no type for; None for a value that is not data."""
    of = type(value)
    if issubclass(of, int):
        return "int", f"{int.__index__(value):x}"
    for kind, (place, parts, _) in KINDS.items():
        made_by = place if isinstance(place, type) else getattr(sys.modules.get(place), kind, None)
        if isinstance(made_by, type) and issubclass(of, made_by):  # no value is from a module that was not imported
            return kind, parts(value)
    return None


def failure(error: BaseException) -> str:
    if isinstance(error, MemoryError):
        return "memory_limit"
    return "syntax_error" if isinstance(error, SyntaxError) else "runtime_error"


def data_names() -> list[str]:
    kinds = [
        getattr(__import__(place), kind) if isinstance(place, str) else place for kind, (place, *_) in KINDS.items()
    ]
    return sorted({name for kind in (*kinds, int) for name in dir(kind)})


# --- The program's side: what this process says is only what the program claims ---


def module(name: str, path: str) -> Any:
    """Return a new module for a program, in `sys.modules` as `name` and `__main__` for pickle and dataclasses."""
    made = type(sys)(name)
    made.__dict__.update(__file__=path, __builtins__=builtins)
    sys.modules[name] = sys.modules["__main__"] = made
    return made


class Server:
    """The program's names and objects."""

    def __init__(self, send: Callable[[str], None]) -> None:
        self.send = send
        self.names: dict[str, Any] = {}
        self.objects: list[Any] = []
        self.known: dict[int, int] = {}  # id of an object -> its number
        self.codec = Codec(self.describe, {"object": self.objects.__getitem__})

    def run(self, program: str, path: str, messages: Iterable[str]) -> None:
        """Run the program as a module (so that `if __name__ == "__main__"` does nothing), send "loaded", and answer."""
        self.names, failed = module("program", path).__dict__, None
        try:
            exec(compile(program, path, "exec", dont_inherit=True), self.names)  # allowed: this is the sandbox
        except BaseException as error:  # allowed: a program may raise anything, SystemExit included
            failed = error
        self.send("loaded")
        for message in messages:
            if failed is not None:
                self.send(f'["{failure(failed)}", null, []]')
                continue
            self.codec.forget()
            held: dict[int, list[Any]] = {}
            try:
                operation, arguments, named = self.codec.decode(message)
                held = {number: items(each) for number, each in self.codec.shared.items()}
                status, value = "ok", self.do(operation, arguments, dict(named))
            except BaseException as error:  # allowed: as above
                status, value = failure(error), error
            self.answer(status, value, held)

    def do(self, operation: str, arguments: list[Any], named: dict[str, Any]) -> Any:
        """Perform one operation: look up a name; call a function, a method of `Solution` or an object; instantiate a
        class; or apply the function of that name from `operator` or `builtins`."""
        if operation == "name":
            if arguments[0] not in self.names:
                raise NameError(f"name {arguments[0]!r} is not defined")
            return self.names[arguments[0]]
        if operation == "function":
            name = arguments.pop(0)
            function = self.names[name] if name in self.names else getattr(self.names["Solution"](), name)
        elif operation in ("call", "make"):
            function = arguments.pop(0)
        else:
            function = getattr(_operator, operation, None) or getattr(builtins, operation)
        value = function(*arguments, **named)
        return Kept(value) if operation == "make" else value

    def answer(self, status: str, value: Any, held: dict[int, list[Any]]) -> None:
        """Send a value or an exception, and the new content of the caller's containers that the call changed."""
        shared = self.codec.shared
        try:
            content = self.codec.content(told(value)) if status != "ok" else self.codec.encode(value)
            changed = [
                f"[{at}, {self.codec.content(shared[at])}]" for at in held if not same(items(shared[at]), held[at])
            ]
        except BaseException:  # allowed: encoding calls what the program defined
            status, content, changed = "runtime_error", '["ValueError", []]', []
        self.send(f'["{status}", {content}, [{", ".join(changed)}]]')

    def describe(self, value: Any) -> tuple[str, Any]:
        """Return the items of an iterator, or the number that stands for an object."""
        if type(value) is Kept:
            value = value.value
        elif hasattr(type(value), "__next__"):
            found = [item for _, item in zip(range(MAX_ITEMS + 1), value)]  # noqa: B905
            if len(found) > MAX_ITEMS:
                raise ValueError("an iterator without an end")
            return "iterator", found
        if id(value) not in self.known:
            self.known[id(value)] = len(self.objects)
            self.objects.append(value)
        return "object", self.known[id(value)]


class Kept:
    """An object that a class made: it is encoded as a number, even if its class derives from a data type."""

    def __init__(self, value: Any) -> None:
        self.value = value


def told(error: BaseException) -> list[Any]:
    """Return the name of the exception's nearest built-in class, and its arguments, all but scalars as text."""
    name = next(each.__name__ for each in type(error).__mro__ if vars(builtins).get(each.__name__) is each)
    return [name, [each if type(each) in (str, int, float, bool, type(None)) else str(each) for each in error.args]]


def items(container: Any) -> list[Any]:
    return [*container, *container.values()] if isinstance(container, dict) else [*container]


def same(some: list[Any], others: list[Any]) -> bool:
    return len(some) == len(others) and all(map(_operator.is_, some, others))


# --- The tests' side: executes the text of tests as it is, where the program cannot reach ---


class Fault(BaseException):
    """Ends a test; a BaseException, so that `except Exception` does not catch it."""


class Gone(Exception):
    """The program has ended; the argument is the status."""


class Talk:
    """The conversation with the program: `answer` returns the line with which it answers a message, or raises Gone.

    Stand-ins do not look up `data_names`; where `shares`, the tests see what the program changes in its arguments.
    """

    def __init__(self, answer: Callable[[str], str], data_names: list[str], shares: bool) -> None:
        self.answer, self.data_names, self.gone = answer, frozenset(data_names), False
        self.codec = Codec(describe, {"object": self.stand_in, "iterator": iter}, shares)
        self.stand_ins: dict[int, Object] = {}
        self.by_name: dict[str, Object] = {}
        self.begin()

    def begin(self) -> None:
        self.asked, self.status = 0, ""
        self.raised: list[BaseException] = []

    def stop(self, status: str) -> Fault:
        """Record the status and return the exception that ends the test; the status stays if the test catches it."""
        self.status = self.status or status
        return Fault(status)

    def ask(self, operation: str, *arguments: Any, **named: Any) -> Any:
        """Return the program's answer, or raise the exception that the program raised."""
        if self.status:
            raise Fault(self.status)
        self.asked += 1
        self.codec.forget()
        try:
            message = self.codec.message(operation, arguments, named)
        except (TypeError, ValueError, RecursionError):  # the test passes a value that is not data
            raise self.stop("gold_unparsable") from None
        try:
            line = self.answer(message)
        except Gone as gone:
            self.gone = True
            raise self.stop(str(gone)) from None
        try:
            status, value, changed = self.codec.decode(line)
            for number, content in changed:
                update(self.codec.shared[number], content)
            error = None if status == "ok" or value is None else rebuilt(*value)
        except Exception:  # allowed: the program may have written anything
            raise self.stop("runtime_error") from None
        if status == "ok":
            return value
        if error is None:  # the program failed while it was loaded
            raise self.stop(status if status in FAILURES else "runtime_error")
        self.raised.append(error)
        raise error

    def stand_in(self, number: int) -> Object:
        if number not in self.stand_ins:
            self.stand_ins[number] = Object(self, number)
        return self.stand_ins[number]

    def look(self, name: str) -> Any:
        """Return what a name of the program's stands for. Data is asked for each time, since a call may change it."""
        self.asked += 1
        if name not in self.by_name:
            found = self.ask("name", name)
            if type(found) is not Object:
                return found
            self.by_name[name] = (Solution if name == "Solution" else Object)(self, found._number)
        return self.by_name[name]


class Object:
    """Stands for an object of the program's. A test can call it, pass it back, compare it with other such objects (the
    program does that), and use methods and attributes whose names no data type has. Python refuses everything else."""

    __slots__ = ("_number", "_talk")
    __hash__ = None  # type: ignore[assignment]  # as for every class that defines only __eq__
    _any_name = False

    def __init__(self, talk: Talk, number: int) -> None:
        object.__setattr__(self, "_talk", talk)
        object.__setattr__(self, "_number", number)

    def __getattr__(self, name: str) -> Any:
        if not self._any_name and (name.startswith("__") or name in self._talk.data_names):
            raise AttributeError(f"{name}: this is an object of the program's, where data was to be")
        return self._talk.ask("getattr", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._talk.ask("setattr", self, name, value)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._talk.ask("call", self, *arguments, **named)

    def __bool__(self) -> bool:
        raise TypeError("this is an object of the program's, neither true nor false")

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("no copies of the program's objects")

    def __mro_entries__(self, bases: Any) -> Any:
        raise self._talk.stop("gold_unparsable")  # a class of the test's cannot derive from one of the program's


class Instance(Object):
    """Stands for what `Solution()` returned: its methods may have any names."""

    __slots__ = ()
    _any_name = True


class Solution(Object):
    """Stands for the program's class `Solution`, which LeetCode asks for."""

    __slots__ = ()

    def __call__(self, *arguments: Any) -> Any:
        made = self._talk.ask("call" if arguments else "make", self, *arguments)
        return made if arguments else Instance(self._talk, made._number)


def compare(operation: str) -> Any:

    def method(self: Object, other: Any) -> Any:
        return self._talk.ask(operation, self, other) is True if isinstance(other, Object) else NotImplemented

    return method


for name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(Object, f"__{name}__", compare(name))


class Constant:
    """Stands for a program in which every call returns one constant, except that a class returns an instance."""

    def __init__(self, constant: bool, is_class: bool, asked: list[int]) -> None:
        self.constant, self.is_class, self.asked = constant, is_class, asked

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        self.asked[0] += 1
        if self.asked[0] > MAX_CONSTANTS:
            raise Fault
        return Constant(self.constant, False, self.asked) if self.is_class else self.constant

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Constant(self.constant, False, self.asked)


class Names(dict[str, "Any"]):
    """A namespace: Python's builtins, then the names that the program provides."""

    def __init__(self, wanted: list[str], look: Callable[[str], Any]) -> None:
        super().__init__({name: value for name, value in vars(builtins).items() if name not in wanted})
        self.wanted, self.look = wanted, look

    def __missing__(self, name: str) -> Any:
        if name not in self.wanted:
            raise KeyError(name)
        return self.look(name)


def describe(value: Any) -> tuple[str, Any]:
    """Return the number of a stand-in. Raises TypeError for any other value."""
    if not isinstance(value, Object):
        raise TypeError(f"{type(value).__name__} is no data")
    return "object", value._number


def update(container: Any, content: Any) -> None:
    if isinstance(container, (dict, set)):
        container.clear()
        container.update(content)
    else:
        container[:] = content


def rebuilt(name: str, arguments: list[Any]) -> BaseException:
    """Return a built-in exception. Raises KeyError for an unknown name, TypeError for a builtin that is no class."""
    kind = vars(builtins)[name]
    if not issubclass(kind, BaseException) or issubclass(kind, STOPS):
        return RuntimeError(f"the program raised {name}")
    try:
        return kind(*arguments)
    except TypeError:  # the class takes other arguments
        return kind.__new__(kind, *arguments)


def close(ours: Fraction, theirs: Fraction) -> bool:
    """Return whether two numbers differ by at most 1e-6 * max(1, |theirs|).

    Different integers are never close.
    """
    difference, size = abs(ours - theirs), abs(theirs)
    return 10**6 * difference <= (size if size > 1 else 1) and 2 * difference < 1


def same_value(value: Any, expected: Any) -> bool:
    """Return whether a return value equals the expected JSON.

    Tuples count as lists, keys as text; integers are exact, floats within the tolerance where a float is expected, and
    True is no number.
    """
    if isinstance(value, dict):
        return isinstance(expected, dict) and _same_items(value, expected)
    if isinstance(value, (list, tuple)):
        same_length = isinstance(expected, list) and len(value) == len(expected)
        return same_length and all(map(same_value, value, expected))
    if isinstance(value, str) or isinstance(expected, str):
        return isinstance(value, str) and isinstance(expected, str) and str.__eq__(value, expected)
    if isinstance(value, (bool, type(None))) or isinstance(expected, (bool, type(None))):
        return value is expected
    if isinstance(expected, (list, dict)) or not _is_number(value):
        return False
    if not isinstance(expected, float) or not (abs(expected) < INFINITY and abs(value) < INFINITY):
        return bool(value == expected)
    from fractions import Fraction

    return close(Fraction(value), Fraction(expected))


def _is_number(value: Any) -> bool:
    kind = type(value).__name__  # decoded values have Python's own types, see `KINDS`
    if kind == "Decimal":
        return value.is_finite() and abs(value.adjusted()) < MAX_EXPONENT
    return kind in ("int", "float", "Fraction")


def _same_items(items: Any, expected: dict[str, Any]) -> bool:
    named = {key if isinstance(key, str) else _json_key(key): item for key, item in items.items()}
    if len(items) != len(expected) or named.keys() != expected.keys():
        return False
    return all(same_value(item, expected[key]) for key, item in named.items())


def _json_key(key: Any) -> str:
    return SCALARS[key] if key is None or isinstance(key, bool) else repr(key)


def execute(test: Test, look: Callable[[str], Any]) -> None:
    """Execute a test; any exception means that it fails."""
    text, wanted, imports = test
    sys.stdout = io.StringIO()
    scope: dict[str, Any] = {"__name__": "test", "__builtins__": Names(wanted, look)}
    for name, path in imports.items():
        parent, _, child = path.partition(".")
        scope[name] = getattr(__import__(parent), child) if child else __import__(parent)
    exec(compile(text, "<test>", "exec", dont_inherit=True), scope)  # allowed: the sandbox; the text is the truth's


def holds_for(constant: bool, test: Test) -> bool:
    """Return whether an assert holds for a program that always answers `constant`."""
    asked = [0]
    try:
        execute(test, lambda name: Constant(constant, name == "Solution", asked))
    except BaseException:  # allowed: a test may raise anything
        return False
    return True


def judged(kind: str, test: Test, talk: Talk) -> str:
    """Return "held", "failed", "gold_unparsable", or how the program failed."""
    talk.begin()
    try:
        if kind == "asserts":
            execute(test, talk.look)
        else:
            name, arguments, expected = test
            value = talk.ask("function", name, *arguments)
            accepted = (*expected, [*expected]) if type(expected) is tuple else (expected,)
            if not any(same_value(value, each) for each in accepted):
                raise AssertionError  # PYTHONOPTIMIZE would remove an assert statement
        status = "held" if talk.asked else "gold_unparsable"
    except BaseException as error:  # allowed: a test may raise anything, and so may a program
        by_the_program = any(error is each for each in talk.raised)
        broken = "gold_unparsable" if isinstance(error, SyntaxError) else "failed"
        status = failure(error) if by_the_program else broken
    return talk.status or status
