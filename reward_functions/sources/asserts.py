"""Splits `assert f(2) == [4]` into what the program must compute (`f(2)`) and what is decided out of its reach.

The program's part of an assert goes into the sandbox and comes back as plain data. The rest, expected values included,
is computed here by an interpreter of a small part of Python's expressions: comparisons, and, or, not, arithmetic,
displays, and calls of the functions below. So no program can read an expected value, and none can redefine `==`,
`sorted` or `assert`. An assert that needs more than this part is refused when the truth is read.
"""

from __future__ import annotations

import ast
import math
import operator
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

ABSENT = {"np", "numpy", "pd", "pandas", "pytest", "torch", "unittest"}

MOST_ALIKE = 100


def spread(keys: Iterable[Any]) -> list[Any]:
    """Keys for a set or a dict.

    Raises:
        ValueError: many different ones hash alike, as multiples of 2**61 - 1 do, and each is compared with each.
    """
    keys = list(keys)
    alike: dict[int, list[Any]] = {}
    for key in keys:
        same = alike.setdefault(hash(key), [])
        if key not in same:
            same.append(key)
            if len(same) > MOST_ALIKE:
                raise ValueError("keys that hash alike")
    return keys


def _counter(items: Any = ()) -> Counter[Any]:
    return Counter(items if isinstance(items, dict) else spread(items))


FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{each.__name__: each for each in (abs, all, any, bool, float, int, isinstance, len, list, max, min, round)},
    **{each.__name__: each for each in (sorted, str, sum, tuple, type)},
    "set": lambda items=(): set(spread(items)),
    "frozenset": lambda items=(): frozenset(spread(items)),
    "Counter": _counter,
    "math.isclose": math.isclose,
}
TYPES = {each.__name__: each for each in (bool, bytes, complex, dict, float, frozenset, int, list, set, str, tuple)}
COMPARISONS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda left, right: left in right,
    ast.NotIn: lambda left, right: left not in right,
}
OPERATIONS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
SIGNS: dict[type, Callable[[Any], Any]] = {ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Not: operator.not_}
# What values from a program can make these operations do; each means that the assert does not hold.
FAILURES = (TypeError, ValueError, ArithmeticError, LookupError, RecursionError, AttributeError)


class Unsupported(ValueError):
    """The assert is none, or needs more than this interpreter has; the message says what."""


@dataclass(frozen=True)
class Assert:
    """One assert, split.

    Args:
        expressions: the program's part, as source.
        test: the rest; where an expression stood is a name `?0`, `?1`, ...
    """

    expressions: list[str]
    test: ast.expr

    def holds(self, values: list[Any]) -> bool:
        """Is it true for these values of its expressions?"""
        if len(values) != len(self.expressions):
            return False
        try:
            return bool(_value(self.test, values))
        except FAILURES:
            return False


def split(text: str) -> Assert:
    """Read one assert statement.

    Raises:
        Unsupported: it is something else, cannot be parsed, or cannot be decided outside the sandbox.
    """
    try:
        statements = ast.parse(text.strip()).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise Unsupported(f"no Python: {error}") from error
    if len(statements) != 1 or not isinstance(statements[0], ast.Assert):
        raise Unsupported("not one assert statement")
    for functions in (FUNCTIONS, {}):  # where nothing but `sum(...)` is called, the program is to define `sum`
        test = ast.parse(text.strip()).body[0].test
        splitter = _Splitter(functions)
        try:
            test = splitter.visit(test)
        except RecursionError as error:
            raise Unsupported("nested too deeply") from error
        if splitter.expressions:
            return Assert(splitter.expressions, test)
    raise Unsupported("the assert calls nothing of the program")


class _Splitter(ast.NodeTransformer):
    """Replaces every part that belongs to the program by a name, from the outside in."""

    def __init__(self, functions: dict[str, Callable[..., Any]]) -> None:
        self.functions, self.expressions = functions, []

    def generic_visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, ast.expr):
            raise Unsupported(f"{ast.unparse(node)!r}: {type(node).__name__} cannot be decided outside the sandbox")
        return node

    def _parts(self, node: ast.AST) -> ast.AST:
        return super().generic_visit(node)

    visit_Compare = visit_BoolOp = visit_List = visit_Tuple = visit_Set = _parts

    def visit_Dict(self, node: ast.Dict) -> ast.AST:
        return self._parts(node) if None not in node.keys else self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        return self._parts(node) if type(node.op) in OPERATIONS else self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        return self._parts(node) if type(node.op) in SIGNS else self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return node if node.id in TYPES else self._program(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if ast.unparse(node.func) not in self.functions:
            return self._program(node)
        node.args = [self.visit(argument) for argument in node.args]
        for keyword in node.keywords:
            if keyword.arg not in ("rel_tol", "abs_tol", "reverse"):
                raise Unsupported(f"{ast.unparse(node)!r}: the argument {keyword.arg} cannot be decided outside")
            keyword.value = self.visit(keyword.value)
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        if isinstance(node.slice, ast.Slice):
            return self._program(node)
        node.value, node.slice = self.visit(node.value), self.visit(node.slice)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        return self._program(node)

    visit_ListComp = visit_Attribute

    def _program(self, node: ast.expr) -> ast.Name:
        absent = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)} & ABSENT
        if absent:
            raise Unsupported(f"{ast.unparse(node)!r}: {min(absent)} is not in the sandbox, which has Python alone")
        self.expressions.append(ast.unparse(node))
        return ast.Name(id=f"?{len(self.expressions) - 1}", ctx=ast.Load())


def _value(node: ast.AST, values: list[Any]) -> Any:
    """The value of an expression that `_Splitter` let pass."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return values[int(node.id[1:])] if node.id.startswith("?") else TYPES[node.id]
    if isinstance(node, ast.Compare):
        return _compared(node, values)
    if isinstance(node, ast.BoolOp):
        result = None
        for part in node.values:
            result = _value(part, values)
            if bool(result) is isinstance(node.op, ast.Or):
                break
        return result
    if isinstance(node, ast.UnaryOp):
        return SIGNS[type(node.op)](_value(node.operand, values))
    if isinstance(node, ast.BinOp):
        return _calculated(node, values)
    if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        kind = {ast.List: list, ast.Tuple: tuple, ast.Set: set}[type(node)]
        return kind(_value(part, values) for part in node.elts)
    if isinstance(node, ast.Dict):
        return {_value(key, values): _value(item, values) for key, item in zip(node.keys, node.values, strict=True)}
    if isinstance(node, ast.Subscript):
        return _value(node.value, values)[_value(node.slice, values)]
    arguments = [_value(argument, values) for argument in node.args]
    named = {keyword.arg: _value(keyword.value, values) for keyword in node.keywords}
    return FUNCTIONS[ast.unparse(node.func)](*arguments, **named)


def _compared(node: ast.Compare, values: list[Any]) -> bool:
    left = _value(node.left, values)
    for comparison, part in zip(node.ops, node.comparators, strict=True):
        right = _value(part, values)
        if not COMPARISONS[type(comparison)](left, right):
            return False
        left = right
    return True


def _calculated(node: ast.BinOp, values: list[Any]) -> Any:
    """Arithmetic on numbers, whose size is bounded; of everything else only sums, since a product may be huge."""
    left, right = _value(node.left, values), _value(node.right, values)
    numbers = isinstance(left, (int, float)) and isinstance(right, (int, float))
    if not numbers and not (isinstance(node.op, (ast.Add, ast.Sub)) and type(left) is type(right)):
        raise TypeError("only sums of anything but numbers")
    if isinstance(node.op, ast.Pow) and (abs(right) > 64 or abs(left) > 2**64):
        raise ValueError("too large a power")
    return OPERATIONS[type(node.op)](left, right)
