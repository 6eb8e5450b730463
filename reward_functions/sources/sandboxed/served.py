"""The program's side of a test: answers what `judged.py` asks, in the process in which the program runs.

Whatever this process says is only what the program claims. It says it as data: values, numbers that stand for its
objects, and names of exceptions.
"""

from __future__ import annotations

import sys

import values

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing takes longer than starting Python
    from collections.abc import Callable
    from typing import Any

# The special methods that a stand-in may have, besides `__eq__` and order; see `judged.py` for what each may do.
READS_OF = (
    "len iter next bool hash str repr format abs neg pos invert int float index complex round trunc floor "
    "ceil reversed enter exit getitem setitem delitem"
)
ARITHMETIC = "add sub mul matmul truediv floordiv mod divmod pow lshift rshift and xor or"
READS = [f"__{name}__" for name in READS_OF.split()]
OPERATORS = [f"__{side}{name}__" for name in ARITHMETIC.split() for side in ("", "r", "i")]
ORDER = [f"__{name}__" for name in ("eq", "ne", "lt", "le", "gt", "ge")]
SPECIAL = (*READS, *OPERATORS, *ORDER, "__contains__", "__call__")
MAX_OUTPUT = 1 << 20  # characters that wait to be sent


def module(name: str, path: str) -> Any:
    """A new module for a program, under that name and as `__main__`, as pickle and dataclasses look it up."""
    made = type(sys)(name)
    made.__file__, made.__builtins__ = path, sys.modules["builtins"]
    sys.modules[name] = sys.modules["__main__"] = made
    return made


class Ended(BaseException):
    """No more messages."""


class Output:
    """The program's standard output: goes along with each answer, so that a test may capture it."""

    encoding, errors, closed = "utf-8", "strict", False

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.size = 0

    def write(self, text: str) -> int:
        self.size += len(text)
        if self.size > MAX_OUTPUT:
            raise OSError("too much output")
        self.parts.append(str(text))
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        pass

    def isatty(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def taken(self) -> str:
        """What was written since the last time."""
        text, self.parts, self.size = "".join(self.parts), [], 0
        return text


class Server:
    """The program's names and objects, and the conversation about them.

    Args:
        receive: the next message; raises Ended.
        send: sends an answer.
    """

    def __init__(self, receive: Callable[[], str], send: Callable[[str], None]) -> None:
        self.receive, self.send = receive, send
        self.names: dict[str, Any] = {}
        self.objects: list[Any] = []
        self.known: dict[int, int] = {}  # id of an object -> its number
        self.described: set[int] = set()  # numbers of classes that the other side knows
        self.definitions: list[Any] = []
        self.before: dict[int, list[Any]] = {}  # number of a container -> what it held
        build = {
            "object": self.objects.__getitem__,
            "builtin": lambda name: getattr(__import__("builtins"), name),
            "callback": self.callback,
            "iterator": iter,
        }
        self.codec = values.Codec(self.describe, build)
        self.output = sys.stdout = Output()

    def start(self, program: str, path: str) -> None:
        """Run the program as a module (so that `if __name__ == "__main__"` does nothing), and answer until the end."""
        self.names = module("program", path).__dict__
        try:
            exec(compile(program, path, "exec", dont_inherit=True), self.names)  # allowed: this is the sandbox
        except BaseException as error:  # allowed: a program may raise anything, SystemExit included
            self.answer("raise", error)
            return
        self.answer("ok", None)
        self.serve()

    def serve(self) -> Any:
        """Answer until the value that a callback returns arrives."""
        while True:
            numbers = set(self.codec.shared)
            operation, *parts = self.codec.decode(self.receive())
            if operation == "return":
                return parts[0]
            if operation == "raise":
                raise parts[0](*parts[1])
            for number in self.codec.shared.keys() - numbers:
                self.before[number] = held(self.codec.shared[number])
            try:
                value, status = getattr(self, f"do_{operation}")(*parts), "ok"
            except Ended:
                raise
            except BaseException as error:  # allowed: a program may raise anything, SystemExit included
                value, status = error, "raise"
            self.answer(status, value)
            for number in self.codec.shared.keys() - numbers:
                del self.codec.numbers[id(self.codec.shared.pop(number))], self.before[number]

    def answer(self, status: str, value: Any) -> None:
        """Send a value, or an exception, and what happened meanwhile: containers that changed, output."""
        try:
            content = self.codec.encode(value)
            changed = ", ".join(self.changes())
        except BaseException as error:  # allowed: encoding calls what the program defined
            content, changed, status = self.codec.encode(ValueError(str(type(error)))), "", "raise"
        definitions, self.definitions = ", ".join([self.codec.content(each) for each in self.definitions]), []
        out = self.codec.encode(self.output.taken())
        self.send(f'[{{"define": [{definitions}]}}, "{status}", {content}, [{changed}], {out}]')

    def changes(self) -> list[str]:
        """`[number, content]` for each container of the test's that is not what it was."""
        changed = []
        for number, value in self.codec.shared.items():
            now, before = held(value), self.before.get(number, [])
            if len(now) != len(before) or not all(map(is_same, now, before)):
                changed.append(f"[{number}, {self.codec.content(value)}]")
                self.before[number] = now
        return changed

    def describe(self, value: Any) -> tuple[str, Any] | None:
        """(kind, content) of what is no data: a number, that of its class, and what it is besides."""
        if type(value) is Made:
            return "object", [self.number(value.made), self.class_number(type(value.made))]
        if values.is_data(value):
            return None
        name = values.builtin(value)
        if name and isinstance(value, type):
            return "builtin", name
        if isinstance(value, type):
            return "class", [self.number(value), self.class_number(value), self.class_number(type(value))]
        if isinstance(value, BaseException):
            arguments = [each if values.is_data(each) else str(each) for each in value.args]
            return "exception", [self.number(value), self.class_number(type(value)), arguments]
        for kind, exactly in values.PLAIN.items():
            if isinstance(value, kind):
                return "derived", [self.number(value), type(value).__name__, exactly(value)]
        if isinstance(value, values.SHARED):
            return None
        if type(value).__name__ == "coroutine":
            return "coroutine", self.number(value)
        try:
            values.plain(value)
        except TypeError:
            return "object", [self.number(value), self.class_number(type(value))]
        return None

    def number(self, value: Any) -> int:
        """The number that stands for an object."""
        if id(value) not in self.known:
            self.known[id(value)] = len(self.objects)
            self.objects.append(value)
        return self.known[id(value)]

    def class_number(self, kind: type) -> int:
        """The number of a class, which is described before its first use: name, module, bases, special methods."""
        number = self.number(kind)
        if number not in self.described:
            self.described.add(number)
            bases = [values.builtin(base) or self.class_number(base) for base in kind.__bases__]
            own = [name for name in SPECIAL if getattr(kind, name, None) is not getattr(object, name, None)]
            special = [name if getattr(kind, name) is not None else f"-{name}" for name in own]
            data = isinstance(kind, type) and issubclass(kind, (*values.PLAIN, *values.SHARED))
            self.definitions.append([number, str(kind.__name__), str(kind.__module__), bases, special, data])
        return number

    def callback(self, number: int) -> Callable[..., Any]:
        """Stands for a function of the test's."""

        def call(*arguments: Any, **named: Any) -> Any:
            self.answer("callback", [number, list(arguments), named])
            return self.serve()

        return call

    def do_name(self, name: str) -> Any:
        return [self.names[name]] if name in self.names else []

    def do_function(self, name: str) -> Any:
        """A function, or a method of `Solution`, as data sets have it."""
        return self.names[name] if name in self.names else getattr(self.names["Solution"](), name)

    def do_call(self, function: Any, arguments: list[Any], named: dict[str, Any]) -> Any:
        return function(*arguments, **named)

    def do_make(self, kind: Any, arguments: list[Any], named: dict[str, Any]) -> Any:
        """An object of a class, by its number even where its class derives from data's."""
        made = kind(*arguments, **named)
        plainly = values.is_data(made) or isinstance(made, (type, BaseException)) or not isinstance(kind, type)
        return made if plainly else Made(made)

    def do_get(self, value: Any, name: str) -> Any:
        return getattr(value, name)

    def do_set(self, value: Any, name: str, content: Any) -> None:
        setattr(value, name, content)

    def do_delete(self, value: Any, name: str) -> None:
        delattr(value, name)

    def do_special(self, value: Any, name: str, arguments: list[Any]) -> Any:
        """A special method, looked up as Python does."""
        return getattr(type(value), name)(value, *arguments)

    def do_data(self, value: Any) -> Any:
        """What an object of a class that derives from data's holds."""
        kinds = values.PLAIN | values.MUTABLE
        return next(exactly for kind, exactly in kinds.items() if isinstance(value, kind))(value)

    def do_await(self, value: Any) -> Any:
        import asyncio

        async def run() -> Any:
            return await value

        return asyncio.run(run())


class Made:
    """An object that the test made by calling a class."""

    def __init__(self, made: Any) -> None:
        self.made = made


def held(container: Any) -> list[Any]:
    """What a container of the test's holds, to be compared by identity."""
    return [*container, *container.values()] if isinstance(container, dict) else [*container]


def is_same(one: Any, other: Any) -> bool:
    return one is other


def replay(report: Callable[[str], None], program: str, told: list[list[str]]) -> None:
    """Report the last answer to each list of messages, or a status, from a process for each that starts anew."""
    import os

    for messages in told:
        sys.stdout.flush()
        there, here = os.pipe()
        if (child := os.fork()) == 0:
            left, answers = messages[1:], [""]

            def receive(left: list[str] = left) -> str:
                if not left:
                    raise Ended
                return left.pop(0)

            try:  # noqa: SIM105
                Server(receive, answers.append).start(program, "program.py")
            except Ended:
                pass
            os.write(here, answers[-1].encode()[:MAX_OUTPUT])
            os._exit(0)
        os.close(here)
        with open(there, encoding="utf-8", errors="replace") as file:
            line = file.read().replace("\n", " ")
        os.waitpid(child, 0)
        report(line or "runtime_error")
