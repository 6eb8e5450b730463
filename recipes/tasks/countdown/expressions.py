"""Every expression over n numbers, each number once, listed one time: the catalogue behind the solver.

Two expressions are the same when they are the same rational function of the numbers taken as variables: order and
grouping of sums and of products do not matter (a - b is a + (-b), a / b is a * (1/b)), nor where a sign is carried
((a - b) * (c - d) is (b - a) * (d - c)). Where two numbers are equal, exchanging them changes nothing either. There are
1, 6, 68, 1170 and 27142 of them for one to five different numbers, OEIS A140606.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations
from typing import NamedTuple

import numpy as np

# A tree is a position into the numbers, or (operator, left tree, right tree).
Tree = int | tuple

# The first spelling found of an expression is the one that is printed: "a + b - c" rather than "a - c + b", and larger
# numbers before smaller ones (positions are sorted), so that fewer steps are negative.
OPERATORS = "-+/*"


class Entry(NamedTuple):
    """One expression as an operation on two smaller ones: row i of the catalogue over the positions of that side."""

    operator: str
    left: tuple[int, ...]
    left_row: int
    right: tuple[int, ...]
    right_row: int


class Block(NamedTuple):
    """Expressions that share operator and positions: `rows` of the result from `left_rows` and `right_rows`."""

    operator: str
    left: tuple[int, ...]
    left_rows: np.ndarray
    right: tuple[int, ...]
    right_rows: np.ndarray
    rows: np.ndarray


def canonical(tree: Tree, labels: Sequence[int]) -> tuple[int, tuple]:
    """(sign, form) of a tree; two trees are the same expression exactly when these are equal.

    Args:
        tree: positions in 0..n-1.
        labels: what stands at each position; equal labels are interchangeable.

    Returns:
        sign 1 or -1, or 0 for a form that is its own negative (it contains x - x), and the form without its sign:
        ("x", label), ("+", ((sign, form), ...)) or ("*", factors, divisors), sorted.
    """
    if isinstance(tree, int):
        return 1, ("x", labels[tree])
    operator, left, right = tree
    sides = canonical(left, labels), canonical(right, labels)
    return _sum(sides, operator) if operator in "+-" else _product(sides, operator)


def _sum(sides: tuple, operator: str) -> tuple[int, tuple]:
    terms = []
    for (sign, form), outer in zip(sides, (1, 1 if operator == "+" else -1), strict=True):
        inner = form[1] if form[0] == "+" else ((1, form),)
        # A sum whose sign is free (0) may be written with its terms as they are.
        terms += [(term * outer * (sign or 1 if form[0] == "+" else sign), part) for term, part in inner]
    here, negated = _ordered(terms), _ordered([(-sign, form) for sign, form in terms])
    if here == negated:
        return 0, ("+", here)
    return (1, ("+", here)) if here < negated else (-1, ("+", negated))


def _product(sides: tuple, operator: str) -> tuple[int, tuple]:
    parts: tuple[list, list] = ([], [])
    for (_, form), turned in zip(sides, (False, operator == "/"), strict=True):
        factors, divisors = form[1:] if form[0] == "*" else ((form,), ())
        parts[turned].extend(factors)
        parts[not turned].extend(divisors)
    return sides[0][0] * sides[1][0], ("*", *(tuple(sorted(part)) for part in parts))


def _ordered(terms: list) -> tuple:
    return tuple(sorted(terms, key=lambda term: (term[1], -term[0])))


@lru_cache
def entries(size: int) -> tuple[Entry, ...]:
    """Every expression over positions 0..size-1 (size >= 2), all positions different, once each."""
    seen, found = set(), []
    whole = tuple(range(size))
    for operator in OPERATORS:
        for left, right in _splits(whole, ordered=operator in "-/"):
            for i in range(count(len(left))):
                for j in range(count(len(right))):
                    entry = Entry(operator, left, i, right, j)
                    key = canonical(_join(entry, whole), whole)
                    if key not in seen:
                        seen.add(key)
                        found.append(entry)
    return tuple(found)


def count(size: int) -> int:
    """How many expressions there are over `size` different numbers."""
    return 1 if size == 1 else len(entries(size))


def tree(size: int, row: int, positions: Sequence[int]) -> Tree:
    """The tree of one row of the catalogue, over the given positions."""
    return positions[0] if size == 1 else _join(entries(size)[row], positions)


def _join(entry: Entry, positions: Sequence[int]) -> Tree:
    left = tree(len(entry.left), entry.left_row, [positions[p] for p in entry.left])
    right = tree(len(entry.right), entry.right_row, [positions[p] for p in entry.right])
    return entry.operator, left, right


def _splits(whole: tuple[int, ...], *, ordered: bool) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    splits = []
    for size in range(len(whole) - 1, 0, -1):
        for chosen in combinations(reversed(whole), size):
            left, right = tuple(sorted(chosen)), tuple(p for p in whole if p not in chosen)
            if ordered or len(left) > len(right) or (len(left) == len(right) and left > right):
                splits.append((left, right))
    return splits


def template(tree: Tree) -> str:
    """The tree as text with the fewest parentheses, `{p}` for position p: `({0} + {1}) * {2}`."""
    return _text(tree)[0]


def _text(tree: Tree) -> tuple[str, str]:
    if isinstance(tree, int):
        return f"{{{tree}}}", ""
    operator, left, right = tree
    (left_text, left_operator), (right_text, right_operator) = _text(left), _text(right)
    if operator in "*/" and left_operator and left_operator in "+-":
        left_text = f"({left_text})"
    loose = {"+": "", "-": "+-", "*": "+-", "/": "+-*/"}[operator]
    if right_operator and right_operator in loose:
        right_text = f"({right_text})"
    return f"{left_text} {operator} {right_text}", operator


@lru_cache
def catalogue(labels: tuple[int, ...]) -> tuple[tuple[Block, ...], tuple[str, ...]]:
    """What is to be evaluated for n numbers with these equalities, and how to print each row.

    Args:
        labels: equal labels for equal numbers, for instance (0, 0, 1, 2) for 5, 5, 7, 9.

    Returns:
        blocks that fill rows 0..k-1, and the k templates. Rows are ordered from plain to involved: fewer divisions,
        then fewer parentheses, then fewer products, then the text, so that the first row that hits prints best.
    """
    size, whole = len(labels), tuple(range(len(labels)))
    kept: dict[tuple, tuple[str, Entry]] = {}
    for row, entry in enumerate(entries(size)):
        shape = tree(size, row, whole)
        kept.setdefault(canonical(shape, labels), (template(shape), entry))
    ranked = sorted(kept.values(), key=lambda item: _rank(item[0]))
    return _blocks([entry for _, entry in ranked]), tuple(text for text, _ in ranked)


def _rank(text: str) -> tuple:
    return text.count("/"), text.count("("), text.count("*"), text


@lru_cache
def full_blocks(size: int) -> tuple[Block, ...]:
    """The blocks of `entries(size)`, in its order of rows."""
    return _blocks(entries(size))


def _blocks(listed: Sequence[Entry]) -> tuple[Block, ...]:
    groups: dict[tuple, list[tuple[int, int, int]]] = {}
    for row, entry in enumerate(listed):
        key = entry.operator, entry.left, entry.right
        groups.setdefault(key, []).append((entry.left_row, entry.right_row, row))
    blocks = []
    for (operator, left, right), rows in groups.items():
        left_rows, right_rows, result = np.array(rows).T
        blocks.append(Block(operator, left, left_rows, right, right_rows, result))
    return tuple(blocks)
