"""Executes the text of tests as it is, in a process that the program cannot reach; see `served.py` for the other side.

A name that the program defines is a stand-in here: using it asks the program's process. What comes back is data,
rebuilt as Python's own types, or a stand-in for an object, which has what no data has. So a test compares with Python's
own `==`, and a program has to know the right value.
"""

from __future__ import annotations

import builtins
import io
import sys

import values

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing takes longer than starting Python
    from collections.abc import Callable
    from typing import Any

    Test = tuple[str, list[str], dict[str, str], list[str]]  # see `names.read`

MAX_GUESSES = 1000  # calls of a test that is tried with a constant for a program
STOPS = (StopIteration, StopAsyncIteration, GeneratorExit)  # they would end a loop of the test's in silence


class Fault(BaseException):
    """The test is over, whatever it catches."""


class Gone(Exception):
    """The program has ended; the argument is the status."""


class Talk:
    """The conversation with the program.

    Args:
        answer: the line with which the program answers a message. Raises Gone.
        data_names: what an object must not be asked for, since data has it.
    """

    def __init__(self, answer: Callable[[str], str], data_names: list[str]) -> None:
        self.answer, self.data_names, self.gone = answer, frozenset(data_names), False
        self.codec = values.Codec(describe, {"object": self.stand_in, "iterator": iter}, shares=True)
        self.stand_ins: dict[int, Object] = {}
        self.by_name: dict[str, Object] = {}
        self.begin()

    def begin(self) -> None:
        """Begin a test."""
        self.asked, self.status = 0, ""
        self.raised: list[BaseException] = []

    def stop(self, status: str) -> Fault:
        """Return what ends the test; also where it is caught, the test has this status."""
        self.status = self.status or status
        return Fault(status)

    def ask(self, operation: str, *arguments: Any, **named: Any) -> Any:
        """Return what the program answers. Raises what it raised."""
        if self.status:
            raise Fault(self.status)
        self.asked += 1
        self.codec.forget()
        try:
            message = self.codec.message(operation, arguments, named)
        except (TypeError, ValueError, RecursionError):  # the test gives the program what is no data
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
        if error is None:  # it raised while it was loaded
            raise self.stop(status if status in values.FAILURES else "runtime_error")
        self.raised.append(error)
        raise error

    def stand_in(self, number: int) -> Object:
        """Return the stand-in for an object, always the same."""
        if number not in self.stand_ins:
            self.stand_ins[number] = Object(self, number)
        return self.stand_ins[number]

    def look(self, name: str, classes: list[str]) -> Any:
        """Return what a name of the program's stands for. Data is asked for each time, since a call may change it."""
        self.asked += 1
        if name not in self.by_name:
            found = self.ask("name", name)
            if type(found) is not Object:
                return found
            kind = Class if name in classes else Solution if name == "Solution" else Object
            self.by_name[name] = kind(self, found._number)
        return self.by_name[name]


class Object:
    """Stands for an object of the program's: has methods and attributes that no data has, can be called and given back,
    and is compared with other such objects, as the program says. Python refuses everything else."""

    __slots__ = ("_number", "_talk")
    __hash__ = None  # type: ignore[assignment]  # as of every class that has __eq__ alone
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
    """Stands for LeetCode's class."""

    __slots__ = ()

    def __call__(self, *arguments: Any) -> Any:
        made = self._talk.ask("call" if arguments else "make", self, *arguments)
        return made if arguments else Instance(self._talk, made._number)


class Made(Instance):
    """Stands for an object that the test made of a class that its author named: does all that the class says."""

    __slots__ = ()

    def __iter__(self) -> Any:
        return iter(self._talk.ask("list", self))

    def __delattr__(self, name: str) -> None:
        self._talk.ask("delattr", self, name)


class Class(Made):
    """Stands for such a class."""

    __slots__ = ()

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return Made(self._talk, self._talk.ask("make", self, *arguments, **named)._number)

    def __instancecheck__(self, value: Any) -> bool:
        return self._talk.ask("isinstance", value, self) is True


def compare(operation: str) -> Any:
    """Return a comparison of two objects."""

    def method(self: Object, other: Any) -> Any:
        return self._talk.ask(operation, self, other) is True if isinstance(other, Object) else NotImplemented

    return method


def operate(operation: str, swapped: bool = False, in_place: bool = False) -> Any:
    """Return an operator, or a function such as `len`; one in place may return the object itself."""

    def method(self: Made, *others: Any) -> Any:
        found = self._talk.ask(operation, *((*others, self) if swapped else (self, *others)))
        return self if in_place and type(found) is Object and found._number == self._number else found

    return method


for name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(Object, f"__{name}__", compare(name))
    setattr(Made, f"__{name}__", operate(name))
FUNCTIONS = "len hash str repr format abs neg pos invert int float bool round getitem setitem delitem contains"
ARITHMETIC = "add sub mul matmul truediv floordiv mod divmod pow lshift rshift and_ or_ xor"
for name in FUNCTIONS.split():
    setattr(Made, f"__{name}__", operate(name))
for name in ARITHMETIC.split():
    plainly = name.rstrip("_")
    setattr(Made, f"__{plainly}__", operate(name))
    setattr(Made, f"__r{plainly}__", operate(name, swapped=True))
    if name != "divmod":
        setattr(Made, f"__i{plainly}__", operate(f"i{plainly}", in_place=True))


class Guess:
    """Stands for a program of which everything is one constant, but for what its classes make."""

    def __init__(self, constant: bool, is_class: bool, asked: list[int]) -> None:
        self.constant, self.is_class, self.asked = constant, is_class, asked

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        self.asked[0] += 1
        if self.asked[0] > MAX_GUESSES:
            raise Fault
        return Guess(self.constant, False, self.asked) if self.is_class else self.constant

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Guess(self.constant, False, self.asked)


class Names(dict[str, "Any"]):
    """Python's own names, and behind them the program's."""

    def __init__(self, wanted: list[str], look: Callable[[str], Any]) -> None:
        super().__init__({name: value for name, value in vars(builtins).items() if name not in wanted})
        self.wanted, self.look = wanted, look

    def __missing__(self, name: str) -> Any:
        if name not in self.wanted:
            raise KeyError(name)
        return self.look(name)


def describe(value: Any) -> tuple[str, Any]:
    """Return the number of a stand-in. Raises TypeError: no data."""
    if not isinstance(value, Object):
        raise TypeError(f"{type(value).__name__} is no data")
    return "object", value._number


def update(container: Any, content: Any) -> None:
    """Do to a container of the test's what the program did to its copy."""
    if isinstance(container, (dict, set)):
        container.clear()
        container.update(content)
    else:
        container[:] = content


def rebuilt(name: str, arguments: list[Any]) -> BaseException:
    """Return an exception of Python's own. Raises TypeError: there is none of this name."""
    kind = vars(builtins)[name]
    if not issubclass(kind, BaseException) or issubclass(kind, STOPS):
        return RuntimeError(f"the program raised {name}")
    try:
        return kind(*arguments)
    except TypeError:  # its message is not all that it was made of
        return kind.__new__(kind, *arguments)


def execute(test: Test, look: Callable[[str], Any]) -> None:
    """Execute a test. Raises anything: it does not hold."""
    text, wanted, imports, _ = test
    sys.stdout = io.StringIO()
    scope: dict[str, Any] = {"__name__": "test", "__builtins__": Names(wanted, look)}
    for name, path in imports.items():
        parent, _, child = path.partition(".")
        scope[name] = getattr(__import__(parent), child) if child else __import__(parent)
    exec(compile(text, "<test>", "exec", dont_inherit=True), scope)  # allowed: the sandbox; the text is the truth's


def guessed(test: Test, constant: bool) -> bool:
    """Return whether a test holds for a program that always answers this."""
    asked, classes = [0], [*test[3], "Solution"]
    try:
        execute(test, lambda name: Guess(constant, name in classes, asked))
    except BaseException:  # allowed: a test may raise anything
        return False
    return True


def judged(test: Test, talk: Talk) -> str:
    """Return "held", "failed", "gold_unparsable", or how the program failed."""
    talk.begin()
    try:
        execute(test, lambda name: talk.look(name, test[3]))
        status = "held" if talk.asked else "gold_unparsable"
    except BaseException as error:  # allowed: a test may raise anything, and so may a program
        by_the_program = any(error is each for each in talk.raised)
        broken = "gold_unparsable" if isinstance(error, SyntaxError) else "failed"
        status = values.failure(error) if by_the_program else broken
    return talk.status or status
