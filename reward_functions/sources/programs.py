"""Model-written programs: extracts the program from a response, reads its tests, and decides which of them passed.

The truth is JSON: `{"inputs": [...], "outputs": [...]}` for standard input and output, the same with `"fn_name"` for
calls, or `{"asserts": [...]}`, the texts of tests. Programs run in `sandbox`. Outputs are compared here; a sandbox
process in which the program never runs compares returned values and executes the texts of tests.
"""

from __future__ import annotations

import ast
import builtins
import json
import re
import symtable
import sys
import textwrap
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from . import answers
from .sandboxed.talk import close

if TYPE_CHECKING:
    from .sandboxed.talk import Test

MAX_PROGRAM = 64_000  # characters
MAX_TESTS = 200
MAX_VALUE = 200_000  # characters of one test or expected output; the sandbox reads 256 KiB of a program's output
MAX_DIGITS = 400  # characters of a number that is compared with a tolerance
YES_OR_NO = ("yes", "no", "true", "false")

# Fences as in CommonMark, but text may precede an opening fence that names Python, and an end mark such as `<|im_end|>`
# may follow a closing fence.
_opening = re.compile(r"^([^\n`~]*)(`{3,}|~{3,})([^\n`]*)$", re.MULTILINE)
_closing = re.compile(r"^[ \t]*(`{3,}|~{3,})[ \t]*(?:<[^\n]*)?$", re.MULTILINE)
_after_language = re.compile(r"[\s{}:,=]")
_python = re.compile(r"i?py(?:thon)?[0-9.]*").fullmatch
_blanks = re.compile(r"([ \t\r\f\v]+)")
_float = re.compile(r"[+-]?(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")
_number = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")


class TruthError(ValueError):
    """The tests cannot be used; the message says what is wrong with them."""


class Tests(NamedTuple):
    """The tests of one problem."""

    kind: str  # "script", "calls" or "asserts", as `sandbox.run` has it
    inputs: list[Any]  # as `sandbox.run` takes them
    outputs: tuple[str, ...] = ()  # what a script should print


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


# --- The truth ---


@lru_cache(maxsize=1024)  # the responses of one group share their tests
def read_text(text: str) -> Tests:
    try:
        truth = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TruthError(f"the tests are no JSON: {str(error)[:80]}") from error
    return read(truth)


def read(truth: Any) -> Tests:
    """The tests of a problem. Raises TruthError: they have none of the forms, are too many, or one is no test."""
    if not isinstance(truth, dict):
        raise TruthError('the tests are not {"inputs": [...], "outputs": [...]} or {"asserts": [...]}')
    if "asserts" in truth:
        assertions = truth["asserts"]
        if not isinstance(assertions, list) or not all(isinstance(text, str) for text in assertions):
            raise TruthError("asserts is not a list of assert statements")
        tests: list[Any] = []
        for text in assertions:
            try:
                tests += map(read_test, single_tests(text if "\n" in text.strip() else text.strip()))
            except TruthError as error:
                raise TruthError(f"{text[:80]!r}: {error}") from error
        _check_count(len(tests))
        return Tests("asserts", tests)
    inputs, outputs = truth.get("inputs"), truth.get("outputs")
    if not isinstance(inputs, list) or not isinstance(outputs, list):
        raise TruthError("inputs and outputs are not two lists")
    _check_count(len(inputs))
    if len(inputs) != len(outputs):
        raise TruthError(f"{len(inputs)} inputs, but {len(outputs)} outputs")
    if truth.get("fn_name"):  # a tuple: the value, or the list that holds it
        return _calls(truth["fn_name"], inputs, [*map(tuple, outputs)] if in_lists(truth) else outputs)
    for text in (*inputs, *outputs):
        if not isinstance(text, str):
            raise TruthError(f"{str(text)[:40]!r} is not the text of a program's input or output")
    if any(len(text) > MAX_VALUE for text in outputs):
        raise TruthError(f"an output is longer than {MAX_VALUE} characters")
    return Tests("script", inputs, tuple(outputs))


def _check_count(tests: int) -> None:
    if not 0 < tests <= MAX_TESTS:
        raise TruthError(f"{tests} tests; give 1 to {MAX_TESTS}")


def in_lists(truth: Any) -> bool:
    """Whether a function's outputs all stand in lists of one, as APPS and TACO have them: `[[5], [0]]`."""
    if not isinstance(truth, dict) or "asserts" in truth or not truth.get("fn_name"):
        return False
    inputs, outputs = truth.get("inputs"), truth.get("outputs")
    if not isinstance(inputs, list) or not isinstance(outputs, list) or any(isinstance(given, str) for given in inputs):
        return False
    return outputs != [] and all(isinstance(wanted, list) and len(wanted) == 1 for wanted in outputs)


def _calls(name: Any, inputs: list[Any], outputs: list[Any]) -> Tests:
    """Read calls. Each of `inputs` is a list of arguments, or text with one JSON value per line, as in verl's data."""
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
        calls.append((name, given, wanted))
    return Tests("calls", calls)


# --- What the text of a test takes from the program ---

ABSENT = {"np", "numpy", "pd", "pandas", "pytest", "scipy", "sympy", "torch"}
# A test that uses these names could execute what the program returns, outside the program's own process.
CODE = {"eval", "exec", "compile", "__import__", "builtins", "pickle", "marshal", "shelve", "runpy", "importlib"}
CODE.add("ctypes")
# Standard library names that tests use without an import: modules, and names from a module.
MODULES = {*answers.WORDS["tests"]["modules"]}
STANDARD = {name: f"{module}.{name}" for module, names in answers.WORDS["tests"]["names"].items() for name in names}
PYTHON = {name for name in dir(builtins) if not name.startswith("_")}


_OF_A_FILE = re.compile(r"^(?:from solution import [\w, *]+|unittest\.main\(.*\))$", re.MULTILINE)  # not of a test
_UNITTEST = """import unittest
_result = unittest.TestResult()
unittest.defaultTestLoader.loadTestsFromTestCase({}).run(_result)
assert _result.wasSuccessful()
if _result.testsRun <= len(_result.skipped):
    raise SyntaxError("every test is skipped")"""


def single_tests(text: str) -> list[str]:
    """One text for each function and class that pytest or unittest would run; the text itself where it runs by itself.
    Raises TruthError: a test needs pytest, or nothing calls what the text defines."""
    text = _OF_A_FILE.sub("", text)
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return [text]  # `read_test` says why
    # What a script calls does not run here.
    body = [node for node in tree.body if not (isinstance(node, ast.If) and "__name__" in ast.unparse(node.test))]
    used = {node.id for part in body for node in ast.walk(part) if isinstance(node, ast.Name)}
    calls, runs, cases = [], False, set[str]()
    for node in body:
        name = getattr(node, "name", "")
        bases = [ast.unparse(base) for base in node.bases] if isinstance(node, ast.ClassDef) else []
        constant = isinstance(getattr(node, "value", None), ast.Constant)
        runs |= not (name or constant or isinstance(node, (ast.Import, ast.ImportFrom)))
        if any("TestCase" in base or base in cases for base in bases):
            cases.add(name)
        if name in used:
            continue
        if name in cases:
            calls.append(_UNITTEST.format(name))
        elif isinstance(node, ast.ClassDef) and name.startswith("Test"):
            raise TruthError(f"{name}: no classes of pytest's; make it a unittest.TestCase")
        elif isinstance(node, ast.FunctionDef) and name.startswith("test"):
            if arguments := ast.unparse(node.args):
                raise TruthError(f"{name}({arguments}): no fixtures and parameters of pytest's")
            calls.append(f"{name}()")
    if not runs and not calls:
        raise TruthError("it calls none of what it defines")
    return [f"{text}\n{call}" for call in calls] or [text]


def read_test(text: str) -> Test:
    """Return the test's text, the names that it takes from the program, and those from the standard library.

    The program only provides names that the test neither defines nor gets from Python: `sorted`, `math.isclose` or
    `Fraction` in a test are Python's own, even if the program defines them. Where a test uses no other names, as in
    `assert sum(10, 15) == 6`, its first standard-library name, or else the first builtin it calls, is the program's.

    Raises:
        TruthError: the text is too long or not Python, needs what the sandbox lacks, or uses nothing of the program.
    """
    if len(text) > MAX_VALUE:
        raise TruthError(f"more than {MAX_VALUE} characters")
    try:
        table, nodes = symtable.symtable(text, "<test>", "exec"), list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise TruthError(f"no Python: {str(error)[:100]}") from error
    own = {each.get_name() for each in table.get_symbols() if each.is_assigned() or each.is_imported()}
    used = [name for name in dict.fromkeys(_globals(table)) if name not in own and not name.startswith("__")]
    modules = {name for node in nodes for name in _modules(node)}
    if absent := [*(ABSENT & {*used}), *(modules - sys.stdlib_module_names)]:
        raise TruthError(f"{min(absent)}: the sandbox has Python's standard library alone")
    if runs := CODE & {*_globals(table), *modules}:
        raise TruthError(f"{min(runs)}: it could make code of what the program returns")
    if "asyncio" in modules or "asyncio" in used or any(isinstance(node, ast.Await) for node in nodes):
        raise TruthError("no coroutines across the sandbox; test a function that calls asyncio.run itself")
    bases = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
    alone = {node.id for node in nodes if isinstance(node, ast.Name) and id(node) not in bases}
    imports = {name: STANDARD[name] for name in used if name in STANDARD}
    imports |= {name: name for name in used if name in MODULES and name not in alone}
    wanted = [name for name in used if name not in imports and name not in PYTHON]
    called = [node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    if not wanted:  # the first candidate is the program's; standard library before builtins
        wanted = [*(name for name in used if name in STANDARD), *(name for name in called if name in used)][:1]
    if not wanted:
        raise TruthError("it takes nothing of the program: all its names are its own or Python's")
    handlers = [node.type for node in nodes if isinstance(node, ast.ExceptHandler) and node.type]
    if caught := {name.id for each in handlers for name in ast.walk(each) if isinstance(name, ast.Name)} & {*wanted}:
        raise TruthError(f"except {min(caught)}: an error of the program's class arrives as the nearest of Python's")
    return text, wanted, {name: path for name, path in imports.items() if name not in wanted}


def _modules(node: ast.AST) -> list[str]:
    if not isinstance(node, (ast.Import, ast.ImportFrom)):
        return []
    names = [each.name for each in node.names] if isinstance(node, ast.Import) else [node.module or "."]
    return [name.partition(".")[0] for name in names]


def _globals(table: symtable.SymbolTable) -> Iterator[str]:
    """Yield the global names that are used anywhere in this scope."""
    top = table.get_type() == "module"
    for symbol in table.get_symbols():
        if symbol.is_referenced() and (top or symbol.is_global()):
            yield symbol.get_name()
    for child in table.get_children():
        yield from _globals(child)


# --- What passed ---


def passed(tests: Tests, results: list[dict[str, str]]) -> tuple[float, str]:
    """Return the share of tests that are right by the results of `sandbox.run`, and the reason code.

    Where every test's answer is yes or no, a partly right program counts as 0 tests: guessing would pass half of them.
    """
    statuses = [result["status"] for result in results]
    if "gold_unparsable" in statuses:
        return 0.0, "gold_unparsable"
    if tests.kind == "script":
        answers = zip(statuses, results, tests.outputs, strict=True)
        right = [status == "ran" and same_text(result["output"], want) for status, result, want in answers]
        yes_or_no = all(want.strip().lower() in YES_OR_NO for want in tests.outputs)
    else:
        right = [status == "held" for status in statuses]
        if tests.kind == "calls":
            wanted = [value[0] if isinstance(value, tuple) else value for _, _, value in tests.inputs]
            yes_or_no = all(isinstance(value, bool) for value in wanted)
        else:
            yes_or_no = all(result["output"] == "b" for result in results)
    if all(right):
        return 1.0, "correct"
    if any(right) and not yes_or_no:
        return sum(right) / len(right), "partial"
    first = statuses[right.index(False)]
    return 0.0, "wrong" if first in ("ran", "failed") else first


def same_text(output: str, expected: str) -> bool:
    """Compare lines, ignoring blanks at their ends and empty lines at the end; floats may differ by the tolerance.

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
    return close(Fraction(ours), Fraction(theirs))
