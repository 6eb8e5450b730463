"""Exact solver for batches of Countdown problems: how many different solutions, and the plainest one.

A value is a fraction of whole numbers kept in float64, which is exact below 2^53. The last operation is not carried
out: an expression `E op x` hits the target exactly when E is the fraction that the target and x ask for, and two
fractions this small are equal exactly when their quotients, each rounded once, are equal. `check_exact` refuses ranges
for which that would not hold. A division by zero is NaN, which spreads and equals nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np

from recipes.errors import RecipeError
from recipes.tasks.countdown.expressions import Block, Tree, catalogue, full_blocks, tree

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
