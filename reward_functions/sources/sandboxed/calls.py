"""Evaluates expressions: those of the program in its own process, and the rest of an assert in a process without it.

What the program's process reports is only what the program claims to return. It is held against expected values
elsewhere: `decide` runs in a process that starts when the program's has ended, with untouched builtins.
"""

from __future__ import annotations

import operator
import sys

import values

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing takes longer than starting Python
    from collections.abc import Callable
    from typing import Any

COMPARISONS = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
    "is": operator.is_, "is not": operator.is_not,
}  # fmt: skip


def module(name: str, path: str) -> Any:
    """A new module for a program, under that name and as `__main__`, as pickle and dataclasses look it up."""
    made = type(sys)(name)
    made.__file__, made.__builtins__ = path, sys.modules["builtins"]
    sys.modules[name] = sys.modules["__main__"] = made
    return made


def load(program: str, path: str) -> dict[str, Any]:
    """The program's names, after it ran as a module (so that `if __name__ == "__main__"` does nothing)."""
    names = module("program", path).__dict__
    exec(compile(program, path, "exec", dont_inherit=True), names)  # allowed: this is the sandbox
    return names


def call(names: dict[str, Any], test: dict[str, Any]) -> str:
    """What one test's function call returns, or each of its parts, with tabs between them: JSON.

    Args:
        names: from `load`.
        test: `{"function": "f", "arguments": [2]}`, where a function that is not there is looked for in a class
            `Solution`; or the parts of an assert, `{"parts": ["f(2)"], "imports": {}}`, each the source of an
            expression, or of two operands and what compares them. A part that raises does not end the others, since
            `f(1) is None or f(1).x` need not use them all.
    """
    if "function" in test:
        name = test["function"]
        function = names[name] if name in names else getattr(names["Solution"](), name)
        return values.encode(function(*test["arguments"]))
    scope = {**imported(test["imports"]), **names}
    return "\t".join([_part(part, scope) for part in test["parts"]])


def _part(part: Any, scope: dict[str, Any]) -> str:
    try:
        if isinstance(part, str):
            return values.encode(eval(part, scope))  # allowed: this is the sandbox
        left, comparison, right = part
        operands = eval(left, scope), eval(right, scope)  # allowed: this is the sandbox
        claim = bool(COMPARISONS[comparison](*operands))
        return values.encode_as("compared", [*map(values.encode, operands), claim])
    except BaseException as error:  # allowed: a program may raise anything, SystemExit included
        return values.encode_as("raised", failure(error))


def imported(imports: dict[str, str]) -> dict[str, Any]:
    """Name -> what it stands for, from name -> "module" or "module.name" of the standard library."""
    scope = {}
    for name, path in imports.items():
        parent, _, child = path.partition(".")
        made = __import__(parent)
        scope[name] = getattr(made, child) if child else made
    return scope


def failure(error: BaseException) -> str:
    """The status of a test that raised."""
    if isinstance(error, MemoryError):
        return "memory_limit"
    return "syntax_error" if isinstance(error, SyntaxError) else "runtime_error"


def run(program: str, path: str, tests: list[dict[str, Any]], report: Callable[[str], None]) -> None:
    """Run the tests in order, and report a line for each as soon as it is over: `ran VALUES`, or what went wrong."""
    try:
        names = load(program, path)
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


def decide(decisions: list[tuple[dict[str, Any], str]], report: Callable[[str], None]) -> None:
    """Report a line for each assert: "held", "failed", "undecided" where it raised, or what a part of it raised.

    Args:
        decisions: `{"test": source, "imports": {}}`, where `__part__(0)` stands for the value of the first part and
            `__compared__(0, "==")` for its comparison; with the values that `call` returned.
    """
    for decision, reported in decisions:
        report(_decision(decision, reported.split("\t")))


def _decision(decision: dict[str, Any], parts: list[str]) -> str:
    try:
        scope = imported(decision["imports"])
        scope["__part__"] = lambda number: _value(parts[number])
        scope["__compared__"] = lambda number, comparison: _compared(comparison, _value(parts[number]))
        held = bool(eval(decision["test"], scope))  # allowed: this is the sandbox, and the text is the truth's
    except values.Raised as raised:
        return raised.args[0]
    except Exception:  # allowed: an assert that raises, whatever it raises, does not hold
        return "undecided"
    return "held" if held else "failed"


def _value(text: str) -> Any:
    value = values.decode(text)
    if isinstance(value, values.Raised):
        raise value
    return value


def _compared(comparison: str, pair: Any) -> bool:
    """A comparison of two operands that are the program's.

    Data is compared here. What holds objects of the program's own classes is compared by the program, and that counts
    where both operands hold objects of the same classes: an `__eq__` that is always true makes nothing of another kind
    equal.
    """
    operands, classes = [], []
    for text in (pair.left, pair.right):
        values.CLASSES.clear()
        operands.append(values.decode(text))
        classes.append(sorted(values.CLASSES))
    if comparison in ("is", "is not") or (classes[0] and classes[0] == classes[1]):
        return pair.claim
    return COMPARISONS[comparison](*operands)
