"""Model-written programs: their tests, the last fenced block of a response, and what passed.

The truth is JSON: `{"inputs": [...], "outputs": [...]}` for standard input and output, the same with `"fn_name"` for
calls, or `{"asserts": [...]}`, the texts of tests. Programs run in `sandbox` or in Sandbox Fusion. Outputs and values
are compared here, the texts of tests are executed in a process of the sandbox in which the program never runs.
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
from .same import EXACT, close, same_value
from .sandboxed.values import FAILURES, Codec

MAX_PROGRAM = 64_000  # characters
MAX_TESTS = 200
MAX_VALUE = 200_000  # characters of one expected output; the sandbox reads at most 256 KiB
MAX_DIGITS = 400  # characters of a number that is compared with a tolerance
YES_OR_NO = ("yes", "no", "true", "false")

# A fence as CommonMark has it; a language may follow text on its line, an end mark such as `<|im_end|>` the last one.
_opening = re.compile(r"^([^\n`~]*)(`{3,}|~{3,})([^\n`]*)$", re.MULTILINE)
_closing = re.compile(r"^[ \t]*(`{3,}|~{3,})[ \t]*(?:<[^\n]*)?$", re.MULTILINE)
_after_language = re.compile(r"[\s{}:,=]")
_python = re.compile(r"i?py(?:thon)?[0-9.]*").fullmatch
_blanks = re.compile(r"([ \t\r\f\v]+)")
_float = re.compile(r"[+-]?(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")
_number = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")


class TruthError(ValueError):
    """The tests cannot be used; the message says what is wrong with them."""


@dataclass(frozen=True, eq=False)  # compared by identity: `read_text` keeps one for each truth
class Tests:
    """The tests of one problem."""

    __test__ = False  # no test class of pytest's

    kind: str  # "script", "calls" or "asserts", as `sandbox.run` has it
    inputs: list[Any]  # as `sandbox.run` takes them
    outputs: tuple[Any, ...] = ()  # what a script should print; what a call should return


def read_program(response: str) -> tuple[str, str]:
    """The last fenced block of Python behind the thinking: (program, ""), or ("", reason).

    A block without a language counts, one of another language (`output`, `bash`) does not.
    """
    close = response.rfind("</think>")
    if response.find("<think>", close + 1) != -1:
        return "", "truncated"
    text = (response[close + 8 :] if close != -1 else response).replace("\r\n", "\n")
    program, at = "", 0
    while (opened := _opening.search(text, at)) is not None:
        before, fence, info = opened.groups()
        at = opened.end()
        language = _after_language.split(info.strip(" \t{."), maxsplit=1)[0].lower()
        if before.strip() and not _python(language):
            continue  # prose
        end = next((each for each in _closing.finditer(text, at) if each[1].startswith(fence)), None)
        if end is None:
            return "", "truncated"
        if not language or _python(language):
            program = text[at + 1 : end.start()]
            program = textwrap.dedent(program) if before else program
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
        TruthError: not one of the three forms, no tests, too many, or a text that is no test.
    """
    if not isinstance(truth, dict):
        raise TruthError('the tests are not {"inputs": [...], "outputs": [...]} or {"asserts": [...]}')
    if "asserts" in truth:
        assertions = truth["asserts"]
        if not isinstance(assertions, list) or not all(isinstance(text, str) for text in assertions):
            raise TruthError("asserts is not a list of assert statements")
        _check_count(len(assertions))
        return _asserts(assertions, truth.get("classes", []))
    inputs, outputs = truth.get("inputs"), truth.get("outputs")
    if not isinstance(inputs, list) or not isinstance(outputs, list):
        raise TruthError("inputs and outputs are not two lists")
    _check_count(len(inputs))
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


def _check_count(tests: int) -> None:
    if not 0 < tests <= MAX_TESTS:
        raise TruthError(f"{tests} tests; give 1 to {MAX_TESTS}")


def _asserts(texts: list[str], classes: Any) -> Tests:
    if not isinstance(classes, list) or not all(isinstance(name, str) and name.isidentifier() for name in classes):
        raise TruthError("classes is not a list of names")
    texts, tests = [text if "\n" in text.strip() else text.strip() for text in texts], []
    for text in texts:
        try:
            tests.append(names.read(text, classes))
        except names.NoTest as error:
            raise TruthError(f"{text[:80]!r}: {error}") from error
    if idle := set(classes) - {name for test in tests for name in test.called}:
        raise TruthError(f"classes has {min(idle)}, which no test calls and leaves to the program")
    return Tests("asserts", [(test.text, test.wanted, test.imports, test.classes) for test in tests])


def _calls(name: Any, inputs: list[Any], outputs: list[Any]) -> Tests:
    """`inputs` hold lists of arguments, or texts with one JSON value a line, as verl's data sets have them."""
    if not isinstance(name, str) or not name.isidentifier():
        raise TruthError(f"fn_name {name!r} is not the name of a function")
    calls, values = [], []
    for given, wanted in zip(inputs, outputs, strict=True):
        if isinstance(given, str):
            try:
                given = [json.loads(line) for line in given.splitlines() if line.strip()]
                wanted = json.loads(wanted) if isinstance(wanted, str) else wanted
            except (ValueError, RecursionError) as error:
                raise TruthError(f"an input of {name} has a line that is no JSON: {str(error)[:80]}") from error
        if not isinstance(given, list):
            raise TruthError(f"an input of {name} is not the list of its arguments: {str(given)[:40]}")
        try:
            calls.append(_codec().message("function", [name, *given], {}))
        except (ValueError, RecursionError) as error:
            raise TruthError(f"an input of {name} is nested too deeply") from error
        values.append(wanted)
    return Tests("calls", calls, tuple(values))


def _codec() -> Codec:
    """Return a codec to which everything that is no data is one thing, equal to nothing."""
    return Codec(
        lambda value: ("object", 0), {"object": lambda number: NotImplemented, "iterator": lambda items: NotImplemented}
    )


def passed(tests: Tests, results: list[dict[str, str]]) -> tuple[int, str]:
    """Return how many tests are right by the results of `sandbox.run`, and the first failure ("" where all are right).

    Where every test's answer is yes or no, all of them have to be right: half of them are for a program that guesses.
    """
    statuses = [result["status"] for result in results]
    if tests.kind == "script":
        answers = zip(statuses, results, tests.outputs, strict=True)
        right = [status == "ran" and same_text(result["output"], want) for status, result, want in answers]
        guessed = all(want.strip().lower() in YES_OR_NO for want in tests.outputs)
    elif tests.kind == "calls":
        answers = zip(statuses, results, tests.outputs, strict=True)
        statuses = [
            _returned(result["output"], want) if status == "ran" else status for status, result, want in answers
        ]
        right = [status == "held" for status in statuses]
        guessed = all(isinstance(want, bool) for want in tests.outputs)
    else:
        right = [status == "held" for status in statuses]
        guessed = all(result["output"] == "b" for result in results)
    if all(right):
        return len(right), ""
    failures = (status for status, each in zip(statuses, right, strict=True) if not each)
    first = next(failures)
    return 0 if guessed else sum(right), "wrong" if first in ("ran", "failed") else first


def _returned(line: str, wanted: Any) -> str:
    """Return the status of a call that the program answered with this line."""
    try:
        status, value, *_ = _codec().decode(line)
    except (ValueError, TypeError):  # the program wrote it itself
        return "runtime_error"
    if status == "ok":
        return "held" if same_value(value, wanted) else "failed"
    return status if status in FAILURES else "runtime_error"


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
