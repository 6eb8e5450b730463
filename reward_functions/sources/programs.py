"""Model-written programs: their tests, the last fenced block of a response, and what passed.

The truth is JSON: `{"inputs": [...], "outputs": [...]}` for standard input and output, the same with `"fn_name"` for
calls, or `{"asserts": [...]}`. Programs run in `sandbox` or in Sandbox Fusion; they see inputs only. Outputs and values
come back as data and are compared here.
"""

from __future__ import annotations

import json
import math
import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from . import asserts

MAX_PROGRAM = 64_000  # characters
MAX_TESTS = 200
MAX_VALUE = 200_000  # characters of one expected output; the sandbox reads at most 256 KiB
TOLERANCE = 1e-6  # between numbers with a point

_opening = re.compile(r"^([ \t]*)```([^\n`]*)$", re.MULTILINE)
_closing = re.compile(r"^[ \t]*```[ \t]*$", re.MULTILINE)
PYTHON = ("", "py", "python", "python3")


class TruthError(ValueError):
    """The tests cannot be used; the message says what is wrong with them."""


@dataclass(frozen=True)
class Tests:
    """The tests of one problem.

    Args:
        kind: "script" or "calls", as `sandbox.run` has it.
        feeds: what each test gives to the program.
        checks: whether what came back from each test is right.
    """

    __test__ = False  # no test class of pytest's

    kind: str
    feeds: list[Any]
    checks: list[Callable[[Any], bool]]


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
        return "", "answer_in_think" if close != -1 and "```" in response[:close] else "no_answer"
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
    if "asserts" in truth:
        return _assertions(truth["asserts"])
    inputs, outputs = truth.get("inputs"), truth.get("outputs")
    if not isinstance(inputs, list) or not isinstance(outputs, list):
        raise TruthError("inputs and outputs are not two lists")
    _countable(inputs)
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


def _countable(tests: list[Any]) -> None:
    if not 0 < len(tests) <= MAX_TESTS:
        raise TruthError(f"{len(tests)} tests; give 1 to {MAX_TESTS}")


def _assertions(texts: Any) -> Tests:
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise TruthError("asserts is not a list of assert statements")
    _countable(texts)
    feeds, checks = [], []
    for text in texts:
        try:
            split = asserts.split(text)
        except asserts.Unsupported as error:
            raise TruthError(f"{text[:80]!r}: {error}") from error
        feeds.append({"expressions": split.expressions})
        checks.append(split.holds)
    return Tests("calls", feeds, checks)


def _calls(name: Any, inputs: list[Any], outputs: list[Any]) -> Tests:
    """`inputs` hold lists of arguments, or texts with one JSON value a line, as verl's data sets have them."""
    if not isinstance(name, str) or not name.isidentifier():
        raise TruthError(f"fn_name {name!r} is not the name of a function")
    feeds, checks = [], []
    for given, wanted in zip(inputs, outputs, strict=True):
        if isinstance(given, str):
            try:
                given = [json.loads(line) for line in given.splitlines() if line.strip()]
                wanted = json.loads(wanted) if isinstance(wanted, str) else wanted
            except (ValueError, RecursionError) as error:
                raise TruthError(f"an input of {name} has a line that is no JSON: {str(error)[:80]}") from error
        if not isinstance(given, list):
            raise TruthError(f"an input of {name} is not the list of its arguments: {str(given)[:40]}")
        feeds.append({"function": name, "arguments": given})
        checks.append(lambda values, want=wanted: len(values) == 1 and same_value(values[0], want))
    return Tests("calls", feeds, checks)


def passed(tests: Tests, results: list[dict[str, Any]]) -> tuple[int, str]:
    """How many tests are right, and what went wrong in the first that is not ("" where all are right).

    Args:
        tests: from `read`.
        results: from `sandbox.run` or `fusion.run`; data that the program made.
    """
    right, first = 0, ""
    for check, result in zip(tests.checks, results, strict=True):
        status = result["status"]
        if status == "ran":
            status = "" if _checked(tests.kind, check, result) else "wrong"
        right += not status
        first = first or status
    return right, first


def _checked(kind: str, check: Callable[[Any], bool], result: dict[str, Any]) -> bool:
    if kind == "script":
        return check(result["output"])
    try:
        return check([decoded(value) for value in result["values"]])
    except (ValueError, TypeError, AttributeError, RecursionError):
        return False  # no value that `inside/harness.py` makes


class Other:
    """A value that is no plain data: true, and equal to nothing."""


def decoded(value: Any) -> Any:
    """A value from the JSON that `inside/harness.py` makes of it.

    Raises:
        ValueError, TypeError, AttributeError, RecursionError: the program wrote this JSON itself.
    """
    if isinstance(value, list):
        return [decoded(item) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "dict":
        keys = asserts.spread(decoded(key) for key, _ in content)
        return {key: decoded(item) for key, (_, item) in zip(keys, content, strict=True)}
    if kind == "tuple":
        return tuple(decoded(item) for item in content)
    if kind in ("set", "frozenset"):
        return (set if kind == "set" else frozenset)(asserts.spread(decoded(item) for item in content))
    if kind == "bytes":
        return content.encode("latin-1")
    if kind == "complex":
        return complex(*content)
    if kind != "other":
        raise ValueError(f"no kind of value: {kind[:20]}")
    return Other()


def same_text(output: str, expected: str) -> bool:
    """Equal but for blanks at the ends of lines and empty lines at the end; numbers with a point within `TOLERANCE`."""
    ours, theirs = output.rstrip().split("\n"), expected.rstrip().split("\n")
    if len(ours) != len(theirs):
        return False
    return all(a.rstrip() == b.rstrip() or _same_words(a.split(), b.split()) for a, b in zip(ours, theirs, strict=True))


def _same_words(ours: list[str], theirs: list[str]) -> bool:
    return len(ours) == len(theirs) and all(a == b or _close(a, b) for a, b in zip(ours, theirs, strict=True))


def _close(ours: str, theirs: str) -> bool:
    if "." not in theirs or len(ours) > 40:
        return False
    try:
        return math.isclose(float(ours), float(theirs), rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    except ValueError:
        return False


def same_value(value: Any, expected: Any) -> bool:
    """Is a return value the expected JSON? Tuples count as lists, keys as text, floats within `TOLERANCE`.

    Raises:
        RecursionError: nested too deeply.
    """
    if isinstance(value, (list, tuple)):
        if not isinstance(expected, list) or len(value) != len(expected):
            return False
        return all(same_value(a, b) for a, b in zip(value, expected, strict=True))
    if isinstance(value, dict):
        named = {key if isinstance(key, str) else json.dumps(key): item for key, item in value.items()}
        if not isinstance(expected, dict) or named.keys() != expected.keys():
            return False
        return all(same_value(item, expected[key]) for key, item in named.items())
    if isinstance(value, float) or isinstance(expected, float):
        numbers = isinstance(value, (int, float)) and isinstance(expected, (int, float))
        try:
            return numbers and math.isclose(value, expected, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
        except OverflowError:
            return False
    return type(value) is type(expected) and value == expected
