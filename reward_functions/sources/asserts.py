"""Splits `assert f(2) == [4]` into what the program must compute (`f(2)`) and what is decided out of its reach.

The program's parts go into the program's process and come back as data. The rest, expected values included, is plain
Python for a process in which the program never ran (`sandboxed/calls.py`, `decide`): there `range`, `sorted`, `==` and
`assert` are Python's own, and the program can read nothing of it.

A part is the largest expression that is the program's: a name that Python does not have, calls and attributes of it,
functions of Python over it (`sorted(f(2))`), and arithmetic between such. Arguments of the program's functions are
inputs and go along. Comparisons, tests such as `isinstance` and `startswith`, arithmetic with other values, and
everything without the program's names stay outside. An assert that cannot be split so is refused.
"""

from __future__ import annotations

import ast
import builtins
import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

MAX_TEXT = 200_000  # characters of one assert
ABSENT = {"np", "numpy", "pd", "pandas", "pytest", "scipy", "sympy", "torch", "unittest"}
# Names of the standard library that asserts use without importing them: as modules, and alone.
MODULES = {
    *("asyncio", "bisect", "cmath", "collections", "copy", "datetime", "decimal", "fractions", "functools", "heapq"),
    *("itertools", "json", "math", "numbers", "operator", "re", "statistics", "string"),
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
# They decide, so what the program returned is held against their other arguments out of its reach.
DECIDING = {"all", "any", "bool", "isclose", "isinstance", "type"}
DECIDING_METHODS = {"startswith", "endswith", "issubset", "issuperset", "isdisjoint"}
DECIDING_METHODS |= {"__contains__", "__eq__", "__ne__"}
ABOUT_THE_PROGRAM = {"callable", "hasattr", "issubclass"}  # what they ask, only the program can answer
_OPERATORS = (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Is, ast.IsNot)
# Those that need both values; `in` is always decided outside.
COMPARISONS = dict(zip(_OPERATORS, ("==", "!=", "<", "<=", ">", ">=", "is", "is not"), strict=True))
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
SMALL = (ast.Constant, ast.Name, ast.Attribute, ast.Lambda)  # arguments that go along, `round(f(2), 3)`
REFUSED = (ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom)


class Unsupported(ValueError):
    """This is no assert, or none that can be decided out of the program's reach; the message says why."""


class _Bound(Exception):
    """A part of the program's needs a variable of a comprehension or a lambda."""


@dataclass(frozen=True)
class Assert:
    """One assert, split; `sandboxed/calls.py` evaluates the fields."""

    parts: list[Any]  # the program's, as source; a comparison between two of its values as (left, operator, right)
    test: str  # the rest, as source; where a part stood is `__part__(0)` or `__compared__(0, "==")`
    imports: dict[str, str]  # name -> "module" or "module.name" of what is taken from the standard library
    constants: list[str]  # the expressions in the rest without the program's parts, but for literals


def split(text: str) -> Assert:
    """Read one assert statement. Raises Unsupported: it is something else, cannot be parsed, or cannot be split."""
    if len(text) > MAX_TEXT:
        raise Unsupported(f"an assert of more than {MAX_TEXT} characters")
    try:
        statements = ast.parse(text.strip()).body
        if len(statements) != 1 or not isinstance(statements[0], ast.Assert):
            raise Unsupported("not one assert statement")
        test = statements[0].test
        for node in ast.walk(test):
            if isinstance(node, REFUSED):
                raise Unsupported(f"{type(node).__name__} in an assert")
            if isinstance(node, ast.Name) and (node.id in ABSENT or node.id.startswith("__")):
                raise Unsupported(f"{ast.unparse(node)}: the sandbox has Python's standard library alone")
        return _split(test)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise error if isinstance(error, Unsupported) else Unsupported(f"no Python: {str(error)[:100]}") from error


def _split(test: ast.expr) -> Assert:
    splitter = _Splitter(test, None)
    if not splitter.program:  # `assert sum(10, 15) == 6`: then what is called first is the program's
        called = next((node.func.id for node in _in_order(test) if _calls(node)), None)
        splitter = _Splitter(test, called)
    if not splitter.program:
        raise Unsupported("the assert calls nothing of the program")
    try:
        rest = splitter.visit(test, frozenset())
    except _Bound as error:
        raise Unsupported(
            f"{error}: the program is called with a variable of the assert; write an assert for each value"
        ) from error
    return Assert(splitter.parts, ast.unparse(rest), splitter.imports, splitter.constants)


def _in_order(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _in_order(child)


def _calls(node: ast.AST, name: str | None = None) -> bool:
    """Is this a call of a name, or of this one?"""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and name in (None, node.func.id)


@dataclass
class _Splitter:
    """Takes the program's parts out of an expression."""

    test: ast.expr
    own: str | None  # a name of Python's that is the program's here
    parts: list[Any] = field(default_factory=list)
    constants: list[str] = field(default_factory=list)
    imports: dict[str, str] = field(default_factory=dict)
    program: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        nodes = list(ast.walk(self.test))
        bound = {node.arg for node in nodes if isinstance(node, ast.arg)}
        bound |= {node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
        modules = {
            node.value.id for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
        }
        standard = STANDARD | {name: name for name in modules & MODULES}
        for name in dict.fromkeys(node.id for node in nodes if isinstance(node, ast.Name) and node.id not in bound):
            if name == self.own or not (name in standard or name in PYTHON):
                self.program.add(name)
            elif name in standard:
                self.imports[name] = standard[name]

    def visit(self, node: ast.expr, bound: frozenset[str]) -> ast.expr:
        """The expression with its parts replaced. Raises _Bound where a part needs a name of `bound`."""
        if not self._is_programs(node):
            if not bound and not isinstance(node, (ast.Name, ast.Lambda)) and not _is_literal(node):
                self.constants.append(ast.unparse(node))
            return node
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in COMPARISONS:
            operands, comparison = (node.left, node.comparators[0]), COMPARISONS[type(node.ops[0])]
            if self._are_parts(operands) and not _names(node) & bound:
                left, right = map(ast.unparse, operands)
                return self._placed("__compared__", (left, comparison, right), comparison)
        if self._is_part(node):
            if _names(node) & bound:
                raise _Bound(ast.unparse(node))
            return self._placed("__part__", ast.unparse(node))
        before = len(self.parts), len(self.constants)
        try:
            return self._parts_of(node, bound)
        except _Bound:
            del self.parts[before[0] :], self.constants[before[1] :]
            takes_function = isinstance(node, ast.Call) and self._is_pythons(node.func)
            if not (isinstance(node, COMPREHENSIONS) or takes_function) or _names(node) & bound or _decides(node):
                raise
            return self._placed("__part__", ast.unparse(node))

    def _placed(self, function: str, part: Any, *arguments: str) -> ast.expr:
        self.parts.append(part)
        return ast.Call(
            ast.Name(function, ast.Load()), [ast.Constant(each) for each in (len(self.parts) - 1, *arguments)], []
        )

    def _parts_of(self, node: ast.AST, bound: frozenset[str]) -> ast.AST:
        if isinstance(node, ast.Lambda):
            bound |= {each.arg for each in ast.walk(node.args) if isinstance(each, ast.arg)}
        elif isinstance(node, COMPREHENSIONS):
            bound |= {name for each in node.generators for name in _names(each.target)}
        changed = copy.copy(node)
        for name, value in ast.iter_fields(node):
            if name == "func" and self._is_pythons(value):
                continue
            if isinstance(value, list):
                setattr(changed, name, [self._child(each, bound) for each in value])
            elif isinstance(value, ast.AST):
                setattr(changed, name, self._child(value, bound))
        return changed

    def _child(self, node: Any, bound: frozenset[str]) -> Any:
        if isinstance(node, ast.expr) and isinstance(getattr(node, "ctx", None), (ast.Store, ast.Del)):
            return node
        if isinstance(node, ast.expr) and not isinstance(node, (ast.Starred, ast.Slice)):
            return self.visit(node, bound)
        return self._parts_of(node, bound) if isinstance(node, ast.AST) else node

    def _is_programs(self, node: ast.AST) -> bool:
        return bool(_names(node) & self.program)

    def _is_pythons(self, function: ast.expr) -> bool:
        """Is this a function of Python's own, or of the standard library?"""
        if isinstance(function, ast.Attribute):
            return isinstance(function.value, ast.Name) and function.value.id in self.imports
        return isinstance(function, ast.Name) and function.id not in self.program

    def _are_parts(self, operands: tuple[ast.expr, ast.expr]) -> bool:
        """Are both the program's? `type(f(2)) is Node` compares two of its values, `type(f(2)) is int` does not."""
        untyped = [each.args[0] if _calls(each, "type") and len(each.args) == 1 else each for each in operands]
        return any(map(self._is_part, operands)) and all(map(self._is_part, untyped))

    def _is_part(self, node: ast.expr) -> bool:
        """Is this the program's as a whole?"""
        if isinstance(node, ast.Name):
            return node.id in self.program
        if isinstance(node, ast.Attribute):
            return node.attr not in DECIDING_METHODS and self._is_part(node.value)
        if isinstance(node, ast.Subscript):
            text = isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str)
            return self._is_part(node.value) and (not text or self._is_object(node.value))
        if isinstance(node, ast.Call):
            return self._is_part_call(node)
        if isinstance(node, ast.BinOp):
            sides = [node.left, node.right]
            return all(map(self._is_part, sides)) or (
                any(map(self._is_object, sides)) and all(self._is_part(s) or not self._is_programs(s) for s in sides)
            )
        if isinstance(node, ast.UnaryOp):
            return not isinstance(node.op, ast.Not) and self._is_part(node.operand)
        if isinstance(node, ast.Compare):  # `3 in Stack([3])`
            inside = len(node.ops) == 1 and isinstance(node.ops[0], (ast.In, ast.NotIn))
            return inside and self._is_object(node.comparators[0]) and not self._is_programs(node.left)
        if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
            return bool(node.elts) and all(map(self._is_part, node.elts))
        return False

    def _is_part_call(self, node: ast.Call) -> bool:
        function, arguments = node.func, [*node.args, *(keyword.value for keyword in node.keywords)]
        if not self._is_pythons(function):
            if isinstance(function, ast.Attribute) and function.attr in DECIDING_METHODS:
                direct = self._is_object(function.value) or any(map(self._is_programs, arguments))
                return direct and self._is_part(function.value)
            return self._is_part(function)
        name = function.attr if isinstance(function, ast.Attribute) else function.id
        if name in ABOUT_THE_PROGRAM:
            return bool(arguments) and self._is_part(arguments[0])
        parts = [self._is_part(argument) for argument in arguments]
        if name in DECIDING:
            return len(parts) > 1 and all(parts)
        pairs = list(zip(parts, arguments, strict=True))
        # In `map(f, [1, 2])` an argument may be a function, which only the program's process can call.
        function = any(part and isinstance(argument, (ast.Name, ast.Attribute)) for part, argument in pairs)
        return any(parts) and all(
            part or ((function or isinstance(argument, SMALL)) and not self._is_programs(argument))
            for part, argument in pairs
        )

    def _is_object(self, node: ast.expr) -> bool:
        """Is this an object of a class of the program's, `Stack(3)`, or arithmetic with one?"""
        if isinstance(node, ast.BinOp):
            return self._is_object(node.left) or self._is_object(node.right)
        return _calls(node) and node.func.id in self.program and node.func.id[0].isupper()


def _names(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def _decides(node: ast.AST) -> bool:
    """Does this compare, or bind several names at once, of which some may be expected values?"""
    for each in ast.walk(node):
        if isinstance(each, (ast.Compare, ast.BoolOp, ast.Not)):
            return True
        if isinstance(each, ast.comprehension) and not isinstance(each.target, ast.Name):
            return True
        if isinstance(each, ast.Call):
            name = getattr(each.func, "attr", getattr(each.func, "id", ""))
            if name in DECIDING | DECIDING_METHODS:
                return True
    return False


def _is_literal(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    return True
