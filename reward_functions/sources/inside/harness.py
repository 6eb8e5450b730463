"""Calls a program's functions and turns what they return into plain data. Runs beside the program, so nothing here is
trusted: what it reports is only what the program claims to return, and the answers it is held against are elsewhere.
"""

from __future__ import annotations

from _json import encode_basestring_ascii as quoted  # the package json takes longer to import than Python to start

TYPE_CHECKING = False
if TYPE_CHECKING:  # so does typing
    from collections.abc import Callable
    from typing import Any

MAX_DEPTH = 100


def plain(value: Any, depth: int = 0) -> str:
    """JSON for a value: scalars, strings and lists as they are, everything else as `{kind: content}`."""
    if depth > MAX_DEPTH:
        raise ValueError("nested too deeply")
    if value is None or value is True or value is False:
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):
        return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}.get(float.__repr__(value), float.__repr__(value))
    if isinstance(value, str):
        return quoted(str.__str__(value))
    if isinstance(value, list):
        return f"[{_items(value, depth)}]"
    for kind in (tuple, set, frozenset):
        if isinstance(value, kind):
            return f'{{"{kind.__name__}": [{_items(value, depth)}]}}'
    if isinstance(value, dict):
        return f'{{"dict": [{_items(map(list, value.items()), depth)}]}}'
    if isinstance(value, (bytes, bytearray)):
        return f'{{"bytes": {quoted(bytes(value).decode("latin-1"))}}}'
    if isinstance(value, complex):
        return f'{{"complex": [{_items([value.real, value.imag], depth)}]}}'
    return f'{{"other": {quoted(type(value).__name__)}}}'


def _items(values: Any, depth: int) -> str:
    return ", ".join([plain(item, depth + 1) for item in values])


def load(program: str) -> dict[str, Any]:
    """The program's names, after it ran as a module (so that `if __name__ == "__main__"` does nothing)."""
    names: dict[str, Any] = {"__name__": "program"}
    exec(compile(program, "<program>", "exec"), names)  # allowed: this is the sandbox; running the program is the job
    return names


def call(names: dict[str, Any], test: dict[str, Any]) -> str:
    """What one test's expressions, or its function call, return: a JSON list.

    Args:
        names: from `load`.
        test: `{"expressions": ["f(2)"]}`, or `{"function": "f", "arguments": [2]}`; a function that is not there is
            looked for in a class `Solution`.
    """
    if "expressions" in test:
        return plain([eval(text, names) for text in test["expressions"]])  # allowed: the truth's own calls, in here
    name = test["function"]
    function = names[name] if name in names else getattr(names["Solution"](), name)
    return plain([function(*test["arguments"])])


def failure(error: BaseException) -> str:
    """The status of a test that raised."""
    if isinstance(error, MemoryError):
        return "memory_limit"
    return "syntax_error" if isinstance(error, SyntaxError) else "runtime_error"


def run(program: str, tests: list[dict[str, Any]], report: Callable[[str], None]) -> None:
    """Run the tests in order, and report a line for each as soon as it is over: `ran [values]`, or what went wrong."""
    try:
        names = load(program)
    except BaseException as error:  # allowed: a program may raise anything, SystemExit included
        for _ in tests:
            report(failure(error))
        return
    for test in tests:
        try:
            line = f"ran {call(names, test)}"
        except BaseException as error:  # allowed: a program may raise anything, SystemExit included
            line = failure(error)
        report(line)
