"""Model-written programs: their tests, the last fenced block of a response, and what passed.

The truth is JSON: `{"inputs": [...], "outputs": [...]}` for standard input and output, the same with `"fn_name"` for
calls, or `{"asserts": [...]}`, the texts of tests. Programs run in `sandbox` or in Sandbox Fusion. Outputs are compared
here, calls and tests in a process in which the program never runs.
"""

from __future__ import annotations

import json
import re
import textwrap
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Any

from . import names
from .sandboxed.same import EXACT, close

MAX_PROGRAM = 64_000  # characters
MAX_TESTS = 200
MAX_VALUE = 200_000  # characters of one expected output; the sandbox reads at most 256 KiB
MAX_DIGITS = 400  # characters of a number that is compared with a tolerance
YES_OR_NO = ("yes", "no", "true", "false")

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

    kind: str  # "script" or "tests", as `sandbox.run` has it
    inputs: list[Any]  # what each test gives to a script; the tests themselves
    outputs: tuple[str, ...] = ()  # of scripts, what they should print
    names: list[dict[str, Any]] | None = None  # of tests, what each takes from the program, see `sandbox.run`


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
    return Tests("script", inputs, tuple(outputs))


def _asserts(texts: list[str]) -> Tests:
    texts = [text if "\n" in text.strip() else text.strip() for text in texts]
    taken = []
    for text in texts:
        try:
            taken.append(vars(names.read(text)))
        except names.NoTest as error:
            raise TruthError(f"{text[:80]!r}: {error}") from error
    return Tests("tests", texts, names=taken)


def _calls(name: Any, inputs: list[Any], outputs: list[Any]) -> Tests:
    """`inputs` hold lists of arguments, or texts with one JSON value a line, as verl's data sets have them."""
    if not isinstance(name, str) or not name.isidentifier():
        raise TruthError(f"fn_name {name!r} is not the name of a function")
    calls = []
    for given, wanted in zip(inputs, outputs, strict=True):
        if isinstance(given, str):
            try:
                given = [json.loads(line) for line in given.splitlines() if line.strip()]
                wanted = json.loads(wanted) if isinstance(wanted, str) else wanted
            except (ValueError, RecursionError) as error:
                raise TruthError(f"an input of {name} has a line that is no JSON: {str(error)[:80]}") from error
        if not isinstance(given, list):
            raise TruthError(f"an input of {name} is not the list of its arguments: {str(given)[:40]}")
        calls.append([name, given, wanted])
    return Tests("tests", calls, names=[{}] * len(calls))


def passed(tests: Tests, results: list[dict[str, Any]]) -> tuple[int, str]:
    """How many tests are right by the results of `sandbox.run`, and the first failure ("" where all are right).

    Where every test's answer is yes or no, all of them have to be right: half of them are for a program that guesses.
    """
    statuses = [result["status"] for result in results]
    if tests.kind == "script":
        right = [
            status == "ran" and same_text(result["output"], want)
            for status, result, want in zip(statuses, results, tests.outputs, strict=True)
        ]
        guessed = all(want.strip().lower() in YES_OR_NO for want in tests.outputs)
    else:
        right = [status == "held" for status in statuses]
        guessed = all(result.get("guessed") for result in results)
    if all(right):
        return len(right), ""
    failures = (status for status, each in zip(statuses, right, strict=True) if not each)
    first = next(failures)
    return 0 if guessed else sum(right), "wrong" if first in ("ran", "failed") else first


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
    return close(a, b) if max(abs(a), abs(b)) < EXACT else close(Fraction(Decimal(ours)), Fraction(Decimal(theirs)))
