"""Names that the text of tests takes from the program: those that it neither defines nor has from Python.

The program can only fill these. `sorted`, `math.isclose` or `Fraction` in a test are Python's own, whatever the program
calls by those names. Where a test uses no other names, as in `assert sum(10, 15) == 6`, the one that it calls first is
the program's.
"""

from __future__ import annotations

import ast
import builtins
import symtable
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

MAX_TEXT = 200_000  # characters of one test
ABSENT = {"np", "numpy", "pd", "pandas", "pytest", "scipy", "sympy", "torch"}
# A test that has these could execute what the program returns, out of the sandbox's process for the program.
CODE = {
    "eval",
    "exec",
    "compile",
    "__import__",
    "builtins",
    "pickle",
    "marshal",
    "shelve",
    "runpy",
    "importlib",
    "ctypes",
}
# Names of the standard library that tests use without importing them: as modules, and alone.
MODULES = {
    *("bisect", "cmath", "collections", "copy", "datetime", "decimal", "fractions", "functools", "heapq"),
    *("io", "itertools", "json", "math", "numbers", "operator", "random", "re", "statistics", "string", "sys"),
    "unittest",
}
ALONE = {
    "collections": "ChainMap Counter OrderedDict defaultdict deque",
    "datetime": "date datetime timedelta",
    "decimal": "Decimal",
    "fractions": "Fraction",
    "functools": "partial reduce",
    "heapq": "nlargest nsmallest",
    "itertools": "accumulate chain combinations combinations_with_replacement count cycle groupby islice permutations "
    "product repeat zip_longest",
    "math": "ceil comb cos e exp factorial floor fsum gcd hypot inf isclose isqrt lcm log log10 log2 nan perm pi prod "
    "sin sqrt tan",
    "statistics": "mean median mode pstdev pvariance stdev variance",
}
STANDARD = {name: f"{module}.{name}" for module, names in ALONE.items() for name in names.split()}
PYTHON = {name for name in dir(builtins) if not name.startswith("_")}


class NoTest(ValueError):
    """This is no test of a program; the message says why."""


@dataclass(frozen=True)
class Test:
    """One test and what it takes from elsewhere."""

    __test__ = False  # no test class of pytest's

    text: str
    wanted: list[str]  # names of the program's
    imports: dict[str, str]  # of the standard library: name -> "module" or "module.name"
    classes: list[str]  # those of the program's names that are classes
    called: set[str]  # those that it calls


def read(text: str, classes: Sequence[str] = ()) -> Test:
    """Return what a test takes from the program.

    Args:
        text: the test.
        classes: names of the program's that are classes.

    Raises:
        NoTest: the text is too long or no Python, needs what the sandbox does not have, or nothing of the program.
    """
    if len(text) > MAX_TEXT:
        raise NoTest(f"more than {MAX_TEXT} characters")
    try:
        table, nodes = symtable.symtable(text, "<test>", "exec"), list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise NoTest(f"no Python: {str(error)[:100]}") from error
    own = {each.get_name() for each in table.get_symbols() if each.is_assigned() or each.is_imported()}
    used = [name for name in dict.fromkeys(_globals(table)) if name not in own and not name.startswith("__")]
    modules = {name for node in nodes for name in _modules(node)}
    if absent := [*(ABSENT & {*used}), *(modules - sys.stdlib_module_names)]:
        raise NoTest(f"{min(absent)}: the sandbox has Python's standard library alone")
    if runs := CODE & {*_globals(table), *modules}:
        raise NoTest(f"{min(runs)}: it could make code of what the program returns")
    if "asyncio" in modules or "asyncio" in used or any(isinstance(node, ast.Await) for node in nodes):
        raise NoTest("coroutines cannot be awaited across the sandbox; test a function that calls asyncio.run itself")
    bases = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
    alone = {node.id for node in nodes if isinstance(node, ast.Name) and id(node) not in bases}
    imports = {name: STANDARD[name] for name in used if name in STANDARD and name not in classes}
    imports |= {name: name for name in used if name in MODULES and name not in alone}
    wanted = [name for name in used if name in classes or (name not in imports and name not in PYTHON)]
    called = [node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    if (
        not wanted
    ):  # then the first that could be is the program's, rather a name of the standard library than a builtin
        wanted = [*(name for name in used if name in STANDARD), *(name for name in called if name in used)][:1]
    if not wanted:
        raise NoTest("it takes nothing of the program: all its names are its own or Python's")
    if caught := {name for node in nodes for name in _caught(node)} & {*wanted}:
        raise NoTest(f"except {min(caught)}: an error of the program's own class arrives as the nearest of Python's")
    imports = {name: path for name, path in imports.items() if name not in wanted}
    return Test(text, wanted, imports, [name for name in classes if name in wanted], {*called} & {*wanted})


def _modules(node: ast.AST) -> list[str]:
    """Return the packages that a statement imports."""
    if not isinstance(node, (ast.Import, ast.ImportFrom)):
        return []
    names = [each.name for each in node.names] if isinstance(node, ast.Import) else [node.module or "."]
    return [name.partition(".")[0] for name in names]


def _caught(node: ast.AST) -> list[str]:
    """Return the names of the errors that a statement catches."""
    if not isinstance(node, ast.ExceptHandler) or node.type is None:
        return []
    return [each.id for each in ast.walk(node.type) if isinstance(each, ast.Name)]


def _globals(table: symtable.SymbolTable) -> Iterator[str]:
    """Yield the global names that are used anywhere in this scope."""
    top = table.get_type() == "module"
    for symbol in table.get_symbols():
        if symbol.is_referenced() and (top or symbol.is_global()):
            yield symbol.get_name()
    for child in table.get_children():
        yield from _globals(child)
