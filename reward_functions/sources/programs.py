"""Model-written programs: their tests, the last fenced block of a response, and what passed.

The truth is JSON: `{"inputs": [...], "outputs": [...]}` for standard input and output, the same with `"fn_name"` for
calls, or `{"asserts": [...]}`. Programs run in `sandbox` or in Sandbox Fusion; they see inputs only. Outputs and values
come back as data and are compared here; asserts are decided in a process in which the program never ran.
"""

from __future__ import annotations

import json
import math
import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Any

from . import asserts

MAX_PROGRAM = 64_000  # characters
MAX_TESTS = 200
MAX_VALUE = 200_000  # characters of one expected output; the sandbox reads at most 256 KiB
MAX_DIGITS = 400  # characters of a number that is compared with a tolerance
EXACT = 2.0**52  # floats above have no fractions, and may stand for several integers
MAX_DECIMAL = 5000  # digits of a Decimal
TOLERANCE = 1e-6  # of floats, absolute and relative to the expected one
LESS_THAN_A_WHOLE = 0.5  # but never as much as this, so that different integers are different
CONSTANTS_AT_ONCE = 100  # that one sandbox evaluates

_opening = re.compile(r"^([ \t]*)```([^\n`]*)$", re.MULTILINE)
_closing = re.compile(r"^[ \t]*```[ \t]*$", re.MULTILINE)
_blanks = re.compile(r"([ \t\r\f\v]+)")
_float = re.compile(r"[+-]?(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")
_number = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")
PYTHON = ("", "py", "python", "python3")


class TruthError(ValueError):
    """The tests cannot be used; the message says what is wrong with them."""


@dataclass(frozen=True, eq=False)  # compared by identity: `read_text` keeps one for each truth
class Tests:
    """The tests of one problem."""

    __test__ = False  # no test class of pytest's

    kind: str  # "script", "calls" or "asserts", as `sandbox.run` has it
    inputs: list[Any]  # what each test gives to the program
    checks: list[Callable[[Any], bool]]  # whether what came back from each test is right
    decisions: tuple[dict[str, Any], ...] = ()  # of asserts, what decides them
    constants: tuple[tuple[str, dict[str, str]], ...] = ()  # (source, imports) of expected values that are no literals


def read_program(response: str) -> tuple[str, str]:
    """The last fenced block of Python behind the thinking: (program, ""), or ("", reason).

    A block without a language counts, one of another language (`output`, `bash`) does not.
    """
    close = response.rfind("</think>")
    if response.find("<think>", close + 1) != -1:
        return "", "truncated"
    text = response[close + 8 :] if close != -1 else response
    program, at = "", 0
    while (opened := _opening.search(text, at)) is not None:
        end = _closing.search(text, opened.end())
        if end is None:
            return "", "truncated"
        if opened[2].strip().partition(" ")[0].lower() in PYTHON:
            program = text[opened.end() + 1 : end.start()]
            program = textwrap.dedent(program) if opened[1] else program
        at = end.end()
    if not program.strip():
        return "", "no_answer"
    return (program, "") if len(program) <= MAX_PROGRAM else ("", "too_long")


@lru_cache(maxsize=1024)  # the responses of one group share their tests
def read_text(text: str) -> Tests:
    """`read` for the JSON itself."""
    try:
        truth = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TruthError(f"the tests are no JSON: {str(error)[:80]}") from error
    return read(truth)


def read(truth: Any) -> Tests:
    """The tests of a problem.

    Raises:
        TruthError: not one of the three forms, no tests, too many, or an assert that cannot be decided.
    """
    if not isinstance(truth, dict):
        raise TruthError('the tests are not {"inputs": [...], "outputs": [...]} or {"asserts": [...]}')
    inputs, outputs, assertions = truth.get("inputs"), truth.get("outputs"), truth.get("asserts")
    if "asserts" in truth:
        if not isinstance(assertions, list) or not all(isinstance(text, str) for text in assertions):
            raise TruthError("asserts is not a list of assert statements")
    elif not isinstance(inputs, list) or not isinstance(outputs, list):
        raise TruthError("inputs and outputs are not two lists")
    count = len(assertions if "asserts" in truth else inputs)
    if not 0 < count <= MAX_TESTS:
        raise TruthError(f"{count} tests; give 1 to {MAX_TESTS}")
    if "asserts" in truth:
        return _asserts(assertions)
    if len(inputs) != len(outputs):
        raise TruthError(f"{len(inputs)} inputs, but {len(outputs)} outputs")
    if truth.get("fn_name"):
        return _calls(truth["fn_name"], inputs, outputs)
    for text in (*inputs, *outputs):
        if not isinstance(text, str):
            raise TruthError(f"{str(text)[:40]!r} is not the text of a program's input or output")
    if any(len(text) > MAX_VALUE for text in outputs):
        raise TruthError(f"an output is longer than {MAX_VALUE} characters")
    return Tests("script", inputs, [lambda out, want=want: same_text(out, want) for want in outputs])


def _asserts(texts: list[str]) -> Tests:
    split = []
    for text in texts:
        try:
            split.append(asserts.split(text))
        except asserts.Unsupported as error:
            raise TruthError(f"{text[:80]!r}: {error}") from error
    return Tests(
        "asserts",
        [{"parts": each.parts, "imports": each.imports} for each in split],
        [bool] * len(split),
        tuple({"test": each.test, "imports": each.imports} for each in split),
        tuple((text, each.imports) for each in split for text in each.constants),
    )


def broken_constants(tests: list[Tests], run: Callable[..., list[dict[str, Any]]], limits: Any) -> list[str]:
    """For each problem, why an expected value of its asserts cannot be computed; "" where all can be.

    `run` is `sandbox.run`, or what does the same elsewhere; `limits` are those of one test.
    """
    jobs = [(number, constant) for number, each in enumerate(tests) for constant in each.constants]
    problems = [""] * len(tests)
    for at in range(0, len(jobs), CONSTANTS_AT_ONCE):
        some = jobs[at : at + CONSTANTS_AT_ONCE]
        total = {"total_s": limits.test_s * len(some), "total_wall_s": limits.wall_s * len(some)}
        decisions = [{"test": f"[{text}] is not None", "imports": imports} for _, (text, imports) in some]
        nothing = [{"parts": [], "imports": {}}] * len(some)
        results = run("asserts", "", nothing, replace(limits, **total), decisions)
        for (number, (text, _)), result in zip(some, results, strict=True):
            if not result.get("held") and result["status"] != "sandbox_error" and not problems[number]:
                why = "it raises" if result["status"] == "ran" else result["status"]
                problems[number] = f"the expected value {text[:80]!r} cannot be computed: {why}"
    return problems


def _calls(name: Any, inputs: list[Any], outputs: list[Any]) -> Tests:
    """`inputs` hold lists of arguments, or texts with one JSON value a line, as verl's data sets have them."""
    if not isinstance(name, str) or not name.isidentifier():
        raise TruthError(f"fn_name {name!r} is not the name of a function")
    calls, checks = [], []
    for given, wanted in zip(inputs, outputs, strict=True):
        if isinstance(given, str):
            try:
                given = [json.loads(line) for line in given.splitlines() if line.strip()]
                wanted = json.loads(wanted) if isinstance(wanted, str) else wanted
            except (ValueError, RecursionError) as error:
                raise TruthError(f"an input of {name} has a line that is no JSON: {str(error)[:80]}") from error
        if not isinstance(given, list):
            raise TruthError(f"an input of {name} is not the list of its arguments: {str(given)[:40]}")
        calls.append({"function": name, "arguments": given})
        checks.append(lambda value, want=wanted: same_value(value, want))
    return Tests("calls", calls, checks)


def passed(tests: Tests, results: list[dict[str, Any]]) -> tuple[int, str]:
    """How many tests are right by the results of `sandbox.run`, and the first failure ("" where all are right)."""
    right, first = 0, ""
    for check, result in zip(tests.checks, results, strict=True):
        status = result["status"]
        if status == "ran":
            status = "" if check(result[RESULT[tests.kind]]) else "wrong"
        right += not status
        first = first or status
    return right, first


RESULT = {"script": "output", "calls": "value", "asserts": "held"}


def same_text(output: str, expected: str) -> bool:
    """The same lines but for blanks at their ends and empty lines at the end; floats within the tolerance.

    A word of digits with a point in `expected` is a float, as in "0.5" and "2.0"; every other word, integers included,
    has to be the same text, and so have the blanks between words.
    """
    ours, theirs = (text.rstrip().split("\n") for text in (output, expected))
    return len(ours) == len(theirs) and all(map(_same_line, ours, theirs))


def _same_line(ours: str, theirs: str) -> bool:
    ours, theirs = ours.rstrip(), theirs.rstrip()
    if ours == theirs:
        return True
    if "." not in theirs:
        return False
    left, right = _blanks.split(ours), _blanks.split(theirs)
    return len(left) == len(right) and all(a == b or _close_texts(a, b) for a, b in zip(left, right, strict=True))


def _close_texts(ours: str, theirs: str) -> bool:
    if max(len(ours), len(theirs)) > MAX_DIGITS or not _float.fullmatch(theirs) or not _number.fullmatch(ours):
        return False
    a, b = float(ours), float(theirs)
    return _close(a, b) if max(abs(a), abs(b)) < EXACT else _close(Fraction(Decimal(ours)), Fraction(Decimal(theirs)))


def _close(ours: Any, theirs: Any) -> bool:
    """Are these finite numbers equal within the tolerance?"""
    size = min(max(1.0, abs(theirs)), 1 / TOLERANCE)  # beyond which less than a whole is the smaller bound
    return abs(ours - theirs) <= TOLERANCE * size and abs(ours - theirs) < LESS_THAN_A_WHOLE


def same_value(value: Any, expected: Any) -> bool:
    """Is a return value, as `sandboxed/values.py` writes it or a program claims it, the expected JSON?

    Tuples count as lists, keys as text; integers are exact, floats within the tolerance where a float is expected, and
    True is no number.
    """
    try:
        return _same(value, expected)
    except (ValueError, TypeError, ArithmeticError, RecursionError):
        return False  # no JSON that `sandboxed/values.py` makes


def _same(value: Any, expected: Any) -> bool:
    if isinstance(value, dict):
        ((kind, content),) = value.items()
        if kind in ("dict", "Counter", "OrderedDict"):
            return isinstance(expected, dict) and _same_items(content, expected)
        if kind not in READ:
            return False
        value = READ[kind](content)
    if isinstance(value, list):
        same_length = isinstance(expected, list) and len(value) == len(expected)
        return same_length and all(map(_same, value, expected))
    if isinstance(value, (bool, str, type(None))) or isinstance(expected, (bool, str, type(None))):
        return type(value) is type(expected) and value == expected
    if isinstance(expected, (list, dict)):
        return False
    if not isinstance(expected, float) or not (math.isfinite(value) and math.isfinite(expected)):
        return value == expected
    return _close(Fraction(value), Fraction(expected))


def _decimal(text: str) -> Decimal:
    """Bounded, since its exponent may stand for more digits than there is memory."""
    number = Decimal(text)
    if len(text) > MAX_DECIMAL or (number.is_finite() and abs(number.adjusted()) > MAX_DECIMAL):
        raise ValueError("too many digits")
    return number


READ: dict[str, Callable[[Any], Any]] = {
    "tuple": list,
    "int": lambda digits: int(digits, 16),
    "Fraction": lambda parts: Fraction(*(part if isinstance(part, int) else int(part["int"], 16) for part in parts)),
    "Decimal": _decimal,
}


def _same_items(items: Any, expected: dict[str, Any]) -> bool:
    named = {key if isinstance(key, str) else json.dumps(key): item for key, item in items}
    if len(items) != len(expected) or named.keys() != expected.keys():
        return False
    return all(_same(item, expected[key]) for key, item in named.items())
