"""Countdown expressions and an exact solver."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import combinations
from typing import NamedTuple

import numpy as np

from recipes.errors import RecipeError

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


SIZES = (2, 3, 4, 5)
# Problems that are solved at once: few enough for the processor's caches, enough to spread numpy's cost of a call.
CHUNK = {2: 8192, 3: 4096, 4: 1024, 5: 64}


Fraction = tuple[np.ndarray, np.ndarray | None]  # numerators and denominators; None stands for 1


class Solved(NamedTuple):
    """For each problem of a batch: `counts` (batch,) different solutions, and the plainest one, "" where none."""

    counts: np.ndarray
    solutions: list[str]


class Values(NamedTuple):
    """k values for each problem of a batch, each array (k, batch), or None.

    `denominator` is None for whole numbers; `divisor` is the numerator with NaN for 0. Values that nothing larger is
    built from have a quotient only.
    """

    numerator: np.ndarray | None
    denominator: np.ndarray | None
    divisor: np.ndarray | None
    quotient: np.ndarray


def check_exact(size: int, max_number: int, max_target: int) -> None:
    """Refuse sizes that are not supported and ranges for which float64 would not be exact.

    Over k numbers up to M, numerators and denominators are at most 2^(k-1) M^k, by induction over the last operation;
    two quotients p/q and r/s that differ do so by a share of at least 1/(q r), which float64 keeps apart below 2^52.
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
    numbers, targets = _checked(numbers, targets)
    counts = np.zeros(len(numbers), dtype=np.int64)
    solutions = [""] * len(numbers)
    for members, templates, ranks, places in _found(numbers, targets):
        counts[members] = np.bincount(places, minlength=len(members))
        best = np.full(len(members), len(templates))
        np.minimum.at(best, places, ranks)
        solved = np.flatnonzero(best < len(templates))
        rows = zip(members[solved].tolist(), best[solved].tolist(), numbers[members[solved]].tolist(), strict=True)
        for place, rank, values in rows:
            solutions[place] = templates[rank].format(*values)
    return Solved(counts, solutions)


def all_solutions(numbers: Sequence[int], target: int) -> list[str]:
    """Every different solution of one problem as text, plainest first."""
    ordered, targets = _checked(np.array([numbers]), np.array([target]))
    _, templates, ranks, _ = next(_found(ordered, targets))
    return [templates[rank].format(*ordered[0].tolist()) for rank in sorted(ranks.tolist())]


def count_placed(numbers: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """(batch,) solutions of each problem when equal numbers count as different ones, by their places."""
    numbers, targets = _checked(numbers, targets)
    counts = np.zeros(len(numbers), dtype=np.int64)
    for members, _, _, places in _found(numbers, targets, exchange_equal=False):
        counts[members] = np.bincount(places, minlength=len(members))
    return counts


def evaluate(size: int, row: int, columns: np.ndarray) -> np.ndarray:
    """(batch,) values of one row of the catalogue of different numbers, NaN where it divides by zero.

    Each is the exact value rounded once, so it is a whole number only if the exact value is.

    Args:
        columns: (size, batch) whole numbers.
    """
    numerator, denominator = _fraction(tree(size, row, range(size)), columns)
    return _over(numerator, denominator)


def _fraction(shape: Tree, columns: np.ndarray) -> Fraction:
    if isinstance(shape, int):
        return columns[shape], None
    operator, left, right = shape
    return _combined(operator, _fraction(left, columns), _fraction(right, columns))


def _checked(numbers: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    numbers, targets = np.sort(np.asarray(numbers), axis=1), np.asarray(targets)
    if numbers.min(initial=1) < 1 or targets.min(initial=1) < 1:
        raise RecipeError(
            "numbers and targets must be 1 or more", where="numbers, targets", fix="leave out 0 and below"
        )
    check_exact(numbers.shape[1], int(numbers.max(initial=1)), int(targets.max(initial=1)))
    return numbers, targets


def _found(
    ordered: np.ndarray, targets: np.ndarray, *, exchange_equal: bool = True
) -> Iterator[tuple[np.ndarray, tuple[str, ...], np.ndarray, np.ndarray]]:
    """Chunks of problems with the same equalities: their rows, the templates, and for each hit its rank and place."""
    for labels, group in _by_equalities(ordered) if exchange_equal else _all_different(ordered):
        blocks, templates = catalogue(labels)
        rank_of_row = np.concatenate([block.rows for block in blocks])
        for start in range(0, len(group), CHUNK[len(labels)]):
            members = group[start : start + CHUNK[len(labels)]]
            hits = _hits(ordered[members].T.astype(np.float64), targets[members].astype(np.float64), blocks)
            rows, places = np.divmod(np.flatnonzero(hits), len(members))
            yield members, templates, rank_of_row[rows], places


def _by_equalities(ordered: np.ndarray) -> Iterator[tuple[tuple[int, ...], np.ndarray]]:
    """Problems grouped by which of their sorted numbers are equal: labels such as (0, 0, 1, 2), and the rows."""
    steps = (np.diff(ordered, axis=1) != 0).astype(np.int64)
    codes = steps @ (1 << np.arange(steps.shape[1]))
    for code in np.unique(codes):
        members = np.flatnonzero(codes == code)
        yield (0, *np.cumsum(steps[members[0]]).tolist()), members


def _all_different(ordered: np.ndarray) -> Iterator[tuple[tuple[int, ...], np.ndarray]]:
    yield tuple(range(ordered.shape[1])), np.arange(len(ordered))


def _hits(columns: np.ndarray, targets: np.ndarray, blocks: Sequence[Block]) -> np.ndarray:
    """(k, batch) booleans, rows in the order of the blocks: which expressions equal the target. columns: (n, batch)."""
    size = len(columns)
    values = {}
    for position in range(size):
        column = columns[position : position + 1]
        values[(position,)] = Values(column, None, column, column)
    for smaller in range(2, size):
        for positions in combinations(range(size), smaller):
            values[positions] = _evaluate(positions, values, quotient_only=smaller == size - 1)
    hits = np.empty((sum(len(block.rows) for block in blocks), len(targets)), dtype=bool)
    start = 0
    for block in blocks:
        stop = start + len(block.rows)
        _compare(block, values[block.left], values[block.right], targets, hits[start:stop])
        start = stop
    return hits


def _compare(block: Block, left: Values, right: Values, targets: np.ndarray, hits: np.ndarray) -> None:
    """Fill hits (rows of the block, batch): is the longer side the quotient that the shorter side asks for?"""
    if len(block.left) > len(block.right):
        asked, rows = _asked_of_left(block.operator, right, targets), block.right_rows
        offered = left.quotient[block.left_rows]
    else:
        asked, rows = _asked_of_right(block.operator, left, targets), block.left_rows
        offered = right.quotient[block.right_rows]
    np.equal(offered, asked if len(asked) == 1 else asked[rows], out=hits)


def _asked_of_right(operator: str, left: Values, targets: np.ndarray) -> np.ndarray:
    """The value v with `left operator v == target`; NaN where there is none."""
    if operator == "*":
        return _times(targets, left.denominator) / left.divisor
    if operator == "/":
        return left.divisor / _times(targets, left.denominator)
    scaled = _times(targets, left.denominator)
    return _over(scaled - left.numerator if operator == "+" else left.numerator - scaled, left.denominator)


def _asked_of_left(operator: str, right: Values, targets: np.ndarray) -> np.ndarray:
    """The value v with `v operator right == target`; NaN where there is none."""
    if operator in "+*":
        return _asked_of_right(operator, right, targets)
    if operator == "-":
        return _over(_times(targets, right.denominator) + right.numerator, right.denominator)
    return _over(targets * right.divisor, right.denominator)


def _times(array: np.ndarray, denominator: np.ndarray | None) -> np.ndarray:
    return array if denominator is None else array * denominator


def _over(array: np.ndarray, denominator: np.ndarray | None) -> np.ndarray:
    return array if denominator is None else array / denominator


def _evaluate(positions: tuple[int, ...], values: dict[tuple[int, ...], Values], *, quotient_only: bool) -> Values:
    """All expressions over these positions, in the catalogue's order, from those over fewer."""
    blocks = full_blocks(len(positions))
    shape = (sum(len(block.rows) for block in blocks), values[positions[:1]].numerator.shape[1])
    numerator, denominator = np.empty(shape), np.ones(shape)
    for block in blocks:
        left = values[tuple(positions[p] for p in block.left)]
        right = values[tuple(positions[p] for p in block.right)]
        over, under = _apply(block, left, right)
        if quotient_only:
            numerator[block.rows] = _over(over, under)
        else:
            numerator[block.rows] = over
            denominator[block.rows] = 1 if under is None else under
    if quotient_only:
        return Values(None, None, None, numerator)
    return Values(numerator, denominator, np.where(numerator == 0, np.nan, numerator), numerator / denominator)


def _apply(block: Block, left: Values, right: Values) -> Fraction:
    """Numerators and denominators (None for 1) of a block's expressions, (rows of the block, batch)."""
    first = left.numerator[block.left_rows], _rows(left.denominator, block.left_rows)
    second = right.numerator[block.right_rows], _rows(right.denominator, block.right_rows)
    return _combined(block.operator, first, second)


def _combined(operator: str, first: Fraction, second: Fraction) -> Fraction:
    over, under = first
    other_over, other_under = second
    if operator == "/":
        divisor = np.where(other_over == 0, np.nan, other_over)
        return _times(over, other_under), _times(divisor, under)
    below = under if other_under is None else _times(other_under, under)
    if operator == "*":
        return over * other_over, below
    over, other_over = _times(over, other_under), _times(other_over, under)
    return (over + other_over if operator == "+" else over - other_over), below


def _rows(array: np.ndarray | None, rows: np.ndarray) -> np.ndarray | None:
    return None if array is None else array[rows]
