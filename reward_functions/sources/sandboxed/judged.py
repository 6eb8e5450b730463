"""Executes the text of tests as it is, in a process that the program cannot reach; see `served.py` for the other side.

A name that the program defines is a stand-in here: using it asks the program's process. What comes back is data,
rebuilt as Python's own types, or a stand-in for an object. So a test compares with Python's own `==`, and a program has
to know the right value. Objects decide only what a test asks of objects: see `Object` and `DATA_METHODS`.
"""

from __future__ import annotations

import io
import operator
import sys
import warnings

import same
import served
import values

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing takes longer than starting Python
    from collections.abc import Callable
    from typing import Any

MAX_GUESSES = 1000  # calls of a test that is tried with a constant for a program
# What immutable data can do. An object that a function returned where data belongs has no such methods: they take the
# expected value along, as `f(3).count(9)` does, and the program would decide.
DATA_METHODS = frozenset(
    name for kind in (str, bytes, int, float, complex, tuple, frozenset, range, type({}.keys())) for name in dir(kind)
) | {"get", "items", "keys", "values", "__contains__"}
STANDARD = sys.stdlib_module_names
# They end a loop or a test without an error where they come out of a call.
STOPS = {"StopIteration", "StopAsyncIteration", "GeneratorExit", "SkipTest", "_ShouldStop"}


class Fault(BaseException):
    """The test is over, whatever it catches; its argument is the status."""


class Talk:
    """The conversation with the program of one test after another.

    Args:
        send: sends a message.
        receive: the answer to it; raises Fault.
    """

    def __init__(self, send: Callable[[str], None], receive: Callable[[], str]) -> None:
        self.send, self.receive = send, receive
        self.classes: dict[int, Any] = {}
        self.stand_ins: dict[tuple[int, bool], Any] = {}
        self.functions: list[Any] = []
        self.callables: dict[str, Any] = {}  # the program's functions and classes by name
        self.raised: list[BaseException] = []  # by the program
        self.asked, self.fault, self.naming = 0, "", False
        self.broken = False  # the program is gone, or waits for what it will not get
        build = {
            "define": lambda definitions: [self.define(*each) for each in definitions],
            "object": lambda parts: self.stand_in(parts[0], self.classes[parts[1]]),
            "class": self.kind,
            "builtin": builtin_type,
            "exception": self.exception,
            "derived": derived,
            "coroutine": coroutine,
        }
        self.codec = values.Codec(self.describe, build, shares=True)

    def stop(self, status: str) -> Fault:
        """What ends the test, also where it catches it."""
        self.fault = self.fault or status
        return Fault(status)

    def ask(self, operation: str, *parts: Any, making: bool = False) -> Any:
        """What the program answers. Raises what it raised."""
        if self.fault:
            raise Fault(self.fault)
        self.asked += 1
        before = set(self.codec.shared)
        try:
            text = self.codec.encode([operation, *parts])
        except TypeError as error:  # the test gives the program what is no data
            raise self.stop("gold_unparsable") from error
        except (ValueError, RecursionError) as error:
            raise self.stop("runtime_error") from error
        try:
            return self.answer(text, operation, parts, making)
        finally:
            for number in self.codec.shared.keys() - before:
                self.codec.numbers.pop(id(self.codec.shared.pop(number)), None)

    def answer(self, text: str, operation: str, parts: tuple[Any, ...], making: bool) -> Any:
        """Send a message, call the test's functions that the program calls, and return or raise what it answers."""
        while True:
            self.send(text)
            line = self.receive()
            self.naming = operation == "name" and is_class_name(parts[0])
            try:
                _, status, value, changed, out = self.codec.decode(line)
                for number, content in changed:
                    update(self.codec.shared[number], content)
                sys.stdout.write(out)
                if status == "callback":
                    function, arguments, named = self.functions[value[0]], *value[1:]
            except Exception as error:  # allowed: the program may have written anything
                self.broken = True
                raise self.stop("runtime_error") from error
            if status == "ok":
                return self.stand_in(value._number, type(value), True) if making and is_object(value) else value
            if status != "callback":
                if not isinstance(value, BaseException):
                    raise self.stop("runtime_error")
                if parts[1:2] != ("__next__",) and STOPS & {kind.__name__ for kind in type(value).__mro__}:
                    value = RuntimeError(f"the program raised {type(value).__name__}")
                self.raised.append(value)
                raise value
            try:
                text = self.codec.encode(["return", function(*arguments, **named)])
            except Exception as error:  # allowed: the test's function may raise anything
                kind = next(filter(None, map(values.builtin, type(error).__mro__)))
                text = self.codec.encode(["raise", vars(values.builtins)[kind], [str(error)]])
            except BaseException:
                self.broken = True
                raise

    def describe(self, value: Any) -> tuple[str, Any] | None:
        """(kind, content) of a stand-in, and of functions and iterators of the test's."""
        if is_object(value) or type(value) in DERIVED:
            return "object", value._number
        if isinstance(value, Mirror):
            return "object", value._class_number
        name = values.builtin(value)
        if name:
            return "builtin", name
        if values.is_data(value) or isinstance(value, (*values.PLAIN, *values.SHARED)):
            return None
        if hasattr(type(value), "__next__"):
            return "iterator", list(value)
        if callable(value) and not isinstance(value, type):
            self.functions.append(value)
            return "callback", len(self.functions) - 1
        return None

    def define(self, number: int, name: str, module: str, bases: list[Any], special: list[str], data: bool) -> None:
        """A class here for a class of the program's."""
        special = [each for each in special if each.lstrip("-") in served.SPECIAL]
        found = getattr(sys.modules.get(module), name, None) if module.partition(".")[0] in STANDARD else None
        if isinstance(found, type) and issubclass(found, BaseException):
            self.classes[number] = found
            return
        all_bases = [self.classes[base] if type(base) is int else builtin_type(base) for base in bases]
        failures = tuple(base for base in all_bases if issubclass(base, BaseException))
        above = failures or tuple(base for base in all_bases if type(base) is Mirror) or (Object,)
        content = {"_class_number": number, "_special": frozenset(special), "_data": data}
        content |= {each: special_method(each) for each in special if each in served.READS}
        if failures:
            content["__getattr__"] = vars(Object)["__getattr__"]
        else:
            content |= {"__slots__": ()} | {each[1:]: None for each in special if each[0] == "-"}
            content |= {each: operator_method(each) for each in special if each in served.OPERATORS}
            content |= {each: comparison_method(each) for each in served.ORDER}
            if {"__iter__", "__len__"} <= set(special):
                content["__iter__"] = items
            content |= {each: OWN[each] for each in special if each in OWN}
            content.setdefault("__hash__", lambda self: hash(self._number))
            content["__doc__"] = property(lambda self: TALKS[-1].ask("get", self, "__doc__"))
        self.classes[number] = type.__new__(Mirror, name, above, content | {"__module__": module})

    def stand_in(self, number: int, kind: Any, made: bool = False) -> Any:
        """The stand-in for an object, always the same; another one where the test itself made the object."""
        if (number, made) not in self.stand_ins:
            new = self.stand_ins[number, made] = object.__new__(kind)
            object.__setattr__(new, "_number", number)
            object.__setattr__(new, "_made", made)
        return self.stand_ins[number, made]

    def kind(self, parts: list[Any]) -> Any:
        """A class by a capital name, or of exceptions, is a class here; one that came as a value is an object."""
        number, described, meta = parts
        if self.naming or issubclass(self.classes[described], BaseException):
            return self.classes[described]
        return self.stand_in(number, self.classes[meta])

    def exception(self, parts: list[Any]) -> BaseException:
        """An exception of the program's, of the same class where Python has it."""
        number, kind, arguments = parts
        found = self.classes[kind]
        if type(found) is not Mirror:
            try:
                return found(*arguments)
            except TypeError:  # its message is not all that it was made of
                return found.__new__(found, *arguments)
        made = found.__new__(found, *arguments)
        made._number = number
        return made


class Mirror(type):
    """The class of the stand-ins' classes."""

    def __new__(cls, name: str, bases: tuple[Any, ...], content: dict[str, Any]) -> Any:
        raise TALKS[-1].stop("gold_unparsable")  # a class of the test's cannot derive from one of the program's

    def __call__(cls, *arguments: Any, **named: Any) -> Any:
        by_name = not issubclass(cls, BaseException)
        return TALKS[-1].ask("make" if by_name else "call", cls, list(arguments), named, making=by_name)

    def __getattr__(cls, name: str) -> Any:
        return attribute(cls, name, False)

    def __setattr__(cls, name: str, value: Any) -> None:
        TALKS[-1].ask("set", cls, name, value)

    def __iter__(cls) -> Any:
        return TALKS[-1].ask("special", cls, "__iter__", [])

    def __len__(cls) -> Any:
        return TALKS[-1].ask("special", cls, "__len__", [])

    def __getitem__(cls, key: Any) -> Any:
        return TALKS[-1].ask("special", cls, "__getitem__", [key])


def is_class_name(name: str) -> bool:
    """Does a test that calls this name make an object, as PEP 8 writes the names of classes?"""
    return name[:1].isupper() and "_" not in name


def attribute(value: Any, name: str, made: bool) -> Any:
    """An attribute of the program's, but for methods that data is asked for."""
    found = TALKS[-1].ask("get", value, name)
    if name in DATA_METHODS and callable(found) and not made:
        raise AttributeError(f"{name}: this is no data, and no object that the test made")
    return found


class _Object:
    """What all stand-ins for objects have.

    One that the test made itself, by calling a class by a name with a capital first letter and no underscore, does as
    its class says; what else comes out of the program takes no data along into its operators.
    """

    __slots__ = ("_made", "_number")

    def __getattr__(self, name: str) -> Any:
        return attribute(self, name, vars(type(self)).get("__slots__") == () and self._made)

    def __setattr__(self, name: str, value: Any) -> None:
        TALKS[-1].ask("set", self, name, value)

    def __delattr__(self, name: str) -> None:
        TALKS[-1].ask("delete", self, name)

    def __reduce_ex__(self, protocol: int) -> Any:
        raise TypeError("no copies of the program's objects")


Object = type.__new__(
    Mirror, "Object", (), {key: each for key, each in vars(_Object).items() if key not in _Object.__slots__}
)


def special_method(name: str) -> Any:
    """A special method that takes nothing along which could be expected of the program."""
    return lambda self, *arguments: TALKS[-1].ask("special", self, name, list(arguments))


def is_object(value: Any) -> bool:
    """Is this a stand-in for an object?"""
    return type(type(value)) is Mirror


def operator_method(name: str) -> Any:
    """Arithmetic: of an object that the test made, and between two objects."""

    def method(self: Any, other: Any, *more: Any) -> Any:
        if not self._made and not is_object(other):
            return NotImplemented
        return TALKS[-1].ask("special", self, name, [other, *more], making=self._made)

    return method


def comparison_method(name: str) -> Any:
    """A comparison: of two objects of one class what the program says, of what derives from data that data's."""
    compare = getattr(operator, name)

    def method(self: Any, other: Any) -> Any:
        talk, kind = TALKS[-1], type(self)
        if not is_object(other):
            return compare(talk.ask("data", self), other) if kind._data else NotImplemented
        if kind is type(other) and name in kind._special:
            return talk.ask("special", self, name, [other]) is True
        if name == "__ne__" and kind._special & {"__eq__"}:
            return not self == other  # noqa: SIM201
        if name in ("__eq__", "__ne__"):
            if kind._data and type(other)._data:
                return compare(talk.ask("data", self), talk.ask("data", other))
            return (self._number == other._number) is (name == "__eq__")
        return NotImplemented

    return method


def contains(self: Any, item: Any) -> bool:
    """`in`: of an object that the test made what its class says; else one of its items has to be equal."""
    if self._made or is_object(item):
        return TALKS[-1].ask("special", self, "__contains__", [item]) is True
    return any(each is item or each == item for each in self)


def items(self: Any) -> Any:
    """The items of what says how many it has: as many, or one could be empty for `all` and full for `len`."""
    asked = TALKS[-1].ask("special", self, "__iter__", [])
    if self._made:
        return asked
    found = list(asked)
    if len(found) != len(self):
        raise TypeError(f"{len(self)} items that are {len(found)}")
    return iter(found)


def call(self: Any, *arguments: Any, **named: Any) -> Any:
    return TALKS[-1].ask("call", self, list(arguments), named)


OWN = {"__contains__": contains, "__call__": call}  # of the special methods
DERIVED: dict[Any, Any] = {}  # classes here for classes that derive from data's: the data, and further attributes
NAMES: dict[tuple[Any, str], Any] = {}


def derived(parts: list[Any]) -> Any:
    """A value of a class that derives from data's, such as a named tuple: that value, with further attributes."""
    number, name, content = parts
    base = type(content)
    if (base, name) not in NAMES:
        if base not in values.PLAIN:
            raise TypeError("no data")
        NAMES[base, name] = type(name, (base,), {"__getattr__": lambda self, each: attribute(self, each, False)})
        DERIVED[NAMES[base, name]] = base
    made = NAMES[base, name](content)
    made._number = int(number)
    return made


TALKS: list[Talk] = []  # the last one is under way


def coroutine(number: int) -> Any:
    """A coroutine here for one of the program's, which runs when this one is awaited."""
    talk = TALKS[-1]

    async def wait() -> Any:
        return talk.ask("await", Reference(number))

    return wait()


class Reference:
    """An object of the program's, by its number."""

    def __init__(self, number: int) -> None:
        self._number = number


DERIVED[Reference] = object


def builtin_type(name: str) -> Any:
    """One of Python's own types. Raises TypeError: this is none."""
    found = vars(values.builtins).get(name)
    if not isinstance(found, type):
        raise TypeError(f"{name} is no type")
    return found


def update(container: Any, content: Any) -> None:
    """What the program did to a container of the test's."""
    if isinstance(container, (dict, set)):
        container.clear()
        container.update(content)
    else:
        container[:] = content


class Names(dict):  # type: ignore[type-arg]
    """Python's own names, and behind them the program's."""

    def __init__(self, wanted: set[str], look: Callable[[str], Any]) -> None:
        super().__init__({name: value for name, value in vars(values.builtins).items() if name not in wanted})
        self.wanted, self.look = wanted, look

    def __missing__(self, name: str) -> Any:
        if name not in self.wanted:
            raise KeyError(name)
        return self.look(name)


def execute(test: Any, names: dict[str, Any], look: Callable[[str], Any], function: Callable[..., Any]) -> bool:
    """Does a test hold? It may raise anything.

    Args:
        test: the text of a test, or [name of a function, arguments, expected JSON].
        names: `{"wanted": names of the program's, "imports": {name: "module" or "module.name"}}`.
        look: what a name of the program's stands for.
        function: the function of that name, or the method of `Solution`.
    """
    sys.stdout = io.StringIO()
    if not isinstance(test, str):
        return same.same_value(function(test[0])(*test[1]), test[2])
    scope: dict[str, Any] = {"__name__": "test", "__builtins__": Names(set(names["wanted"]), look)}
    for name, path in names["imports"].items():
        parent, _, child = path.partition(".")
        made = __import__(parent)
        scope[name] = getattr(made, child) if child else made
    exec(compile(test, "<test>", "exec", dont_inherit=True), scope)  # allowed: the sandbox; the text is the truth's
    return True


def guessed(test: Any, names: dict[str, Any], constant: bool) -> bool:
    """Does a test hold for a program whose functions all return this constant?"""
    asked = [0]

    def answer(*arguments: Any, **named: Any) -> bool:
        asked[0] += 1
        if asked[0] > MAX_GUESSES:
            raise Fault("")
        return constant

    try:
        return execute(test, names, lambda name: answer, lambda name: answer)
    except BaseException:  # allowed: a test may raise anything
        return False


def judged(test: Any, names: dict[str, Any], talk: Talk) -> str:
    """ "held", "failed", "gold_unparsable", or how the program failed."""
    talk.asked, talk.fault = 0, ""
    talk.raised.clear()
    talk.functions.clear()
    TALKS[:] = [talk]

    def look(name: str) -> Any:
        talk.asked += 1
        if name not in talk.callables:
            found = talk.ask("name", name)
            if not found:
                raise talk.stop("runtime_error")  # the program does not define it
            if not callable(found[0]):
                return found[0]  # asked again each time, since a call may change it
            talk.callables[name] = found[0]
        return talk.callables[name]

    try:
        status = "held" if execute(test, names, look, lambda name: talk.ask("function", name)) else "failed"
    except SyntaxError as error:
        status = failure(error) if error in talk.raised else "gold_unparsable"
    except BaseException as error:  # allowed: a test may raise anything, and so may a program
        status = failure(error) if any(error is each for each in talk.raised) else "failed"
    if talk.fault:
        return talk.fault
    return "gold_unparsable" if status == "held" and not talk.asked else status


def failure(error: BaseException) -> str:
    """The status of a test in which the program raised."""
    if isinstance(error, MemoryError):
        return "memory_limit"
    return "syntax_error" if isinstance(error, SyntaxError) else "runtime_error"


def loaded(line: str, talk: Talk) -> str:
    """The status of every test where the program raised while it was loaded; "" where it did not."""
    try:
        _, status, value, _, _ = talk.codec.decode(line)
        return "" if status == "ok" else failure(value)
    except Exception:  # allowed: the program may have written anything
        return "runtime_error"


def flags(tests: list[Any], names: list[dict[str, Any]]) -> str:
    """A letter for each test: "b" where a constant True or a constant False makes it hold, "-" where neither does."""
    warnings.filterwarnings("error", "NotImplemented should not be used")  # else it is true
    pairs = list(zip(tests, names))  # noqa: B905
    holds = [guessed(test, taken, True) or guessed(test, taken, False) for test, taken in pairs]
    return "".join("b" if each else "-" for each in holds)


def converse(
    tests: list[Any], names: list[dict[str, Any]], first: int, talk: Talk, report: Callable[[str], None]
) -> None:
    """Report a line of flags for all tests, and a line with the status of each from `first` on, until the program is
    gone; "last" behind a status says so, "all" that it ended while it was loaded."""
    report("" if first else flags(tests, names))
    TALKS[:] = [talk]
    try:
        status = loaded(talk.receive(), talk)
    except Fault as fault:
        report(f"{fault} all")
        return
    tests, names = tests[first:], names[first:]
    for test, taken in zip(tests, names):  # noqa: B905
        result = status or judged(test, taken, talk)
        report(f"{result} last" if talk.broken else result)
        if talk.broken:
            return


def replay(report: Callable[[str], None], tests: list[Any], names: list[dict[str, Any]], told: list[list[str]]) -> None:
    """Report flags, and of each test "status STATUS", or "ask MESSAGE" where the answers that it was told end."""
    report(flags(tests, names))
    for test, taken, answers in zip(tests, names, told):  # noqa: B905
        left, sent = list(answers), [""]

        def receive(left: list[str] = left, sent: list[str] = sent) -> str:
            if not left:
                raise TALKS[-1].stop("ask")
            return left.pop(0)

        talk = Talk(sent.append, receive)
        TALKS[:] = [talk]
        if not left:
            report("ask ")
            continue
        status = loaded(receive(), talk) or judged(test, taken, talk)
        report(f"ask {sent[-1]}" if status == "ask" else f"status {status}")
