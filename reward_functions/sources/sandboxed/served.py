"""The program's side: runs it, and answers calls and questions about its objects in the process in which it runs.

Whatever this process says is only what the program claims. It says it as data, and numbers that stand for objects.
"""

from __future__ import annotations

import _operator
import builtins
import sys

import values

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing takes longer than starting Python
    from collections.abc import Callable, Iterable
    from typing import Any

MAX_ITEMS = 100_000  # of an iterator, which comes as a whole


def module(name: str, path: str) -> Any:
    """Return a new module for a program, under that name and as `__main__`, as pickle and dataclasses look it up."""
    made = type(sys)(name)
    made.__dict__.update(__file__=path, __builtins__=builtins)
    sys.modules[name] = sys.modules["__main__"] = made
    return made


class Server:
    """The program's names and objects.

    Args:
        send: sends a line.
    """

    def __init__(self, send: Callable[[str], None]) -> None:
        self.send = send
        self.names: dict[str, Any] = {}
        self.objects: list[Any] = []
        self.known: dict[int, int] = {}  # id of an object -> its number
        self.codec = values.Codec(self.describe, {"object": self.objects.__getitem__})

    def run(self, program: str, path: str, messages: Iterable[str]) -> None:
        """Run the program as a module (so that `if __name__ == "__main__"` does nothing), say so, and answer."""
        self.names, failed = module("program", path).__dict__, None
        try:
            exec(compile(program, path, "exec", dont_inherit=True), self.names)  # allowed: this is the sandbox
        except BaseException as error:  # allowed: a program may raise anything, SystemExit included
            failed = error
        self.send("loaded")
        for message in messages:
            if failed is not None:
                self.send(f'["{values.failure(failed)}", null, []]')
                continue
            self.codec.forget()
            held: dict[int, list[Any]] = {}
            try:
                operation, arguments, named = self.codec.decode(message)
                held = {number: items(each) for number, each in self.codec.shared.items()}
                status, value = "ok", self.do(operation, arguments, dict(named))
            except BaseException as error:  # allowed: as above
                status, value = values.failure(error), error
            self.answer(status, value, held)

    def do(self, operation: str, arguments: list[Any], named: dict[str, Any]) -> Any:
        """Look up a name, call a function by its name, or a method of `Solution`, or an object, or make an object of a
        class, or do what Python's module `operator` or a builtin of that name does."""
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
        return Made(value) if operation == "make" else value

    def answer(self, status: str, value: Any, held: dict[int, list[Any]]) -> None:
        """Send a value or an exception, and what happened meanwhile to containers of the caller's."""
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
        if type(value) is Made:
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


class Made:
    """An object that a class made: it goes by its number, even where its class derives from data's."""

    def __init__(self, value: Any) -> None:
        self.value = value


def told(error: BaseException) -> list[Any]:
    """Return the name of the nearest class of Python's own, and the arguments as far as they are data."""
    name = next(each.__name__ for each in type(error).__mro__ if vars(builtins).get(each.__name__) is each)
    return [name, [each if type(each) in (str, int, float, bool, type(None)) else str(each) for each in error.args]]


def items(container: Any) -> list[Any]:
    """Return what a container of the caller's holds."""
    return [*container, *container.values()] if isinstance(container, dict) else [*container]


def same(some: list[Any], others: list[Any]) -> bool:
    """Return whether these are the same objects."""
    return len(some) == len(others) and all(map(_operator.is_, some, others))
