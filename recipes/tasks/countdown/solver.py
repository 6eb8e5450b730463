"""An exact solver for Countdown: every expression over two to five numbers, evaluated for many problems at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from recipes.errors import RecipeError

# A tree is a position into the numbers, or (operator, left tree, right tree).
Tree = int | tuple[str, "Tree", "Tree"]
Form = tuple[Any, ...]
"""An expression without its sign; see `canonical`."""

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


def canonical(tree: Tree, labels: Sequence[int]) -> tuple[int, Form]:
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


def _sum(sides: tuple[tuple[int, Form], tuple[int, Form]], operator: str) -> tuple[int, Form]:
    terms = []
    for (sign, form), outer in zip(sides, (1, 1 if operator == "+" else -1), strict=True):
        inner = form[1] if form[0] == "+" else ((1, form),)
        # A sum whose sign is free (0) may be written with its terms as they are.
        terms += [(term * outer * (sign or 1 if form[0] == "+" else sign), part) for term, part in inner]
    here, negated = _ordered(terms), _ordered([(-sign, form) for sign, form in terms])
    if here == negated:
        return 0, ("+", here)
    return (1, ("+", here)) if here < negated else (-1, ("+", negated))


def _product(sides: tuple[tuple[int, Form], tuple[int, Form]], operator: str) -> tuple[int, Form]:
    parts: tuple[list[Form], list[Form]] = ([], [])
    for (_, form), turned in zip(sides, (False, operator == "/"), strict=True):
        factors, divisors = form[1:] if form[0] == "*" else ((form,), ())
        parts[turned].extend(factors)
        parts[not turned].extend(divisors)
    return sides[0][0] * sides[1][0], ("*", *(tuple(sorted(part)) for part in parts))


def _ordered(terms: list[tuple[int, Form]]) -> Form:
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
    """Return how many expressions there are over `size` different numbers."""
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


class Block(NamedTuple):
    """Expressions that share operator and positions: `rows` of the catalogue from `left_rows` and `right_rows`."""

    operator: str
    left: tuple[int, ...]
    left_rows: np.ndarray
    right: tuple[int, ...]
    right_rows: np.ndarray
    rows: np.ndarray


@lru_cache
def blocks(size: int) -> tuple[Block, ...]:
    """The catalogue of `size` different numbers in blocks that numpy evaluates at once."""
    groups: dict[tuple[str, tuple[int, ...], tuple[int, ...]], list[tuple[int, int, int]]] = {}
    for row, entry in enumerate(entries(size)):
        key = entry.operator, entry.left, entry.right
        groups.setdefault(key, []).append((entry.left_row, entry.right_row, row))
    made = []
    for (operator, left, right), triples in groups.items():
        left_rows, right_rows, rows = np.array(triples).T
        made.append(Block(operator, left, left_rows, right, right_rows, rows))
    return tuple(made)


@lru_cache
def ranking(labels: tuple[int, ...]) -> tuple[np.ndarray, tuple[str, ...]]:
    """The different expressions over numbers with these equalities, plainest first.

    Args:
        labels: equal labels for equal numbers, for instance (0, 0, 1, 2) for 5, 5, 7, 9.

    Returns:
        rows of the catalogue of different numbers, one for each expression, and how to print them. Plain means fewer
        divisions, then fewer parentheses, then fewer products, then by text.
    """
    size = len(labels)
    first: dict[tuple[int, Form], tuple[str, int]] = {}
    for row in range(count(size)):
        shape = tree(size, row, range(size))
        first.setdefault(canonical(shape, labels), (template(shape), row))
    ranked = sorted(first.values(), key=lambda item: (*(item[0].count(mark) for mark in "/(*"), item))
    return np.array([row for _, row in ranked]), tuple(text for text, _ in ranked)


SIZES = (2, 3, 4, 5)
# Problems that are solved at once: few enough for the processor's caches, enough to spread numpy's cost of a call.
CHUNK = {2: 8192, 3: 4096, 4: 512, 5: 64}

Fraction = tuple[np.ndarray, np.ndarray | None]  # numerators and denominators; None stands for 1


class Solved(NamedTuple):
    """For each problem of a batch, all (batch,).

    Attributes:
        counts: different solutions.
        placed: the same when equal numbers count as different ones, by their places.
        solutions: the plainest one, "" where there is none.
    """

    counts: np.ndarray
    placed: np.ndarray
    solutions: list[str]


def check_exact(size: int, max_number: int, max_target: int) -> None:
    """Refuse sizes that are not supported and ranges for which float64 would not be exact.

    Over k numbers up to M, numerators and denominators are at most 2^(k-1) M^k, by induction over the last operation;
    their products with the target must stay below 2^52.
    """
    if size not in SIZES:
        raise RecipeError(
            f"{size} numbers a problem are not supported", where="sizes", fix=f"use {SIZES[0]} to {SIZES[-1]}"
        )
    if 2 ** (size - 1) * max_number**size * max_target >= 2**52:
        raise RecipeError(
            f"{size} numbers up to {max_number} with targets up to {max_target} are too large for exact arithmetic",
            where="max_number, max_target",
            fix="lower one of them",
        )


def solve(numbers: np.ndarray, targets: np.ndarray) -> Solved:
    """Solve a batch of problems of one size.

    Args:
        numbers: (batch, n) whole numbers >= 1, n in 2..5, in any order.
        targets: (batch,) whole numbers >= 1.
    """
    numbers, targets = np.sort(np.asarray(numbers), axis=1), np.asarray(targets)
    if numbers.min(initial=1) < 1 or targets.min(initial=1) < 1:
        raise RecipeError(
            "numbers and targets must be 1 or more", where="numbers, targets", fix="leave out 0 and below"
        )
    batch, size = numbers.shape
    check_exact(size, int(numbers.max(initial=1)), int(targets.max(initial=1)))
    solved = Solved(np.zeros(batch, np.int64), np.zeros(batch, np.int64), [""] * batch)
    for start in range(0, batch, CHUNK[size]):
        part = slice(start, start + CHUNK[size])
        hits = _hits(numbers[part].T.astype(np.float64), targets[part].astype(np.float64))
        solved.placed[part] = hits.sum(axis=0)
        for labels, members in _by_equalities(numbers[part]):
            rows, templates = ranking(labels)
            ranked = hits[rows][:, members]
            solved.counts[start + members] = ranked.sum(axis=0)
            for place, rank in zip(members.tolist(), ranked.argmax(axis=0).tolist(), strict=True):
                if solved.counts[start + place]:
                    solved.solutions[start + place] = templates[rank].format(*numbers[start + place].tolist())
    return solved


def evaluate(size: int, row: int, columns: np.ndarray) -> np.ndarray:
    """(batch,) values of one row of the catalogue of different numbers, NaN where it divides by zero.

    Each is the exact value rounded once, so it is a whole number only if the exact value is.

    Args:
        columns: (size, batch) whole numbers.
    """

    def fraction(shape: Tree) -> Fraction:
        if isinstance(shape, int):
            return columns[shape], None
        operator, left, right = shape
        return _combined(operator, fraction(left), fraction(right))

    numerator, denominator = fraction(tree(size, row, range(size)))
    return numerator if denominator is None else numerator / denominator


def _by_equalities(ordered: np.ndarray) -> Iterator[tuple[tuple[int, ...], np.ndarray]]:
    """Problems grouped by which of their sorted numbers are equal: labels such as (0, 0, 1, 2), and the rows."""
    steps = (np.diff(ordered, axis=1) != 0).astype(np.int64)
    codes = steps @ (1 << np.arange(steps.shape[1]))
    for code in np.unique(codes):
        members = np.flatnonzero(codes == code)
        yield (0, *np.cumsum(steps[members[0]]).tolist()), members


def _hits(columns: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """(rows of the catalogue, batch) booleans: which expressions equal the target. columns: (n, batch)."""
    size = len(columns)
    values: dict[tuple[int, ...], Fraction] = {(p,): (columns[p : p + 1], None) for p in range(size)}
    for smaller in range(2, size):
        for positions in combinations(range(size), smaller):
            shape = count(smaller), len(targets)
            numerators, denominators = np.empty(shape), np.ones(shape)
            for block in blocks(smaller):
                over, under = _of_block(block, positions, values)
                numerators[block.rows] = over
                if under is not None:
                    denominators[block.rows] = under
            values[positions] = numerators, denominators
    hits = np.empty((count(size), len(targets)), dtype=bool)
    for block in blocks(size):
        over, under = _of_block(block, range(size), values)
        hits[block.rows] = over == (targets if under is None else targets * under)
    return hits


def _of_block(block: Block, positions: Sequence[int], values: dict[tuple[int, ...], Fraction]) -> Fraction:
    """A block's expressions over these positions, (rows of the block, batch)."""

    def side(places: tuple[int, ...], rows: np.ndarray) -> Fraction:
        over, under = values[tuple(positions[p] for p in places)]
        return over[rows], None if under is None else under[rows]

    return _combined(block.operator, side(block.left, block.left_rows), side(block.right, block.right_rows))


def _combined(operator: str, left: Fraction, right: Fraction) -> Fraction:
    """One operation on fractions; the denominator is NaN where it divides by zero."""
    (over, under), (other_over, other_under) = left, right
    if operator == "/":
        return _times(over, other_under), _times(np.where(other_over == 0, np.nan, other_over), under)
    below = under if other_under is None else _times(other_under, under)
    if operator == "*":
        return over * other_over, below
    over, other_over = _times(over, other_under), _times(other_over, under)
    return (over + other_over if operator == "+" else over - other_over), below


def _times(array: np.ndarray, factor: np.ndarray | None) -> np.ndarray:
    return array if factor is None else array * factor
