"""Countdown's problems: presets, expressions by recursion, the generator, and those of the hub's data set."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from recipes.data.hub import load_hub_table
from recipes.data.splits import bucket_of
from recipes.errors import RecipeError
from recipes.files import sha256

if TYPE_CHECKING:
    import pyarrow as pa


def bucket(numbers: Sequence[int]) -> str:
    """The bucket of a multiset of numbers: `pretrain`, `train` or `test`. Neither order nor target plays a part."""
    return bucket_of(",".join(map(str, sorted(numbers))))


@dataclass(frozen=True)
class Settings:
    """Problems of a data set; the defaults are those of the hub's `Jiayi-Pan/Countdown-Tasks-3to4`.

    Args:
        sizes: how many numbers a problem has; each size is equally likely. (The hub's set has 490,364 rows of 40.07
            bytes on average, 12 and 8 for each number: 49% of its problems have three numbers, 51% have four.)
        min_number, max_number: range of the numbers, both ends included.
        min_target, max_target: range of the target, both ends included.
        train_size, test_size: problems in each split.
        train_buckets, test_buckets: where the multisets of numbers of each split come from (see `bucket`).
    """

    sizes: tuple[int, ...] = (3, 4)
    min_number: int = 1
    max_number: int = 99
    min_target: int = 1
    max_target: int = 99
    train_size: int = 4096
    test_size: int = 512
    train_buckets: tuple[str, ...] = ("pretrain", "train")
    test_buckets: tuple[str, ...] = ("test",)

    def __post_init__(self) -> None:
        for low, high in (("min_number", "max_number"), ("min_target", "max_target")):
            if not 1 <= getattr(self, low) <= getattr(self, high):
                raise RecipeError(
                    f"{low}={getattr(self, low)} and {high}={getattr(self, high)} are not a range of numbers from 1 up",
                    where=f"{low}, {high}",
                    fix=f"1 <= {low} <= {high}",
                )
        for name in ("train_size", "test_size"):
            if getattr(self, name) < 1:
                raise RecipeError(f"{name}={getattr(self, name)} is not positive", where=name, fix="ask for 1 or more")
        if not self.sizes or len(set(self.sizes)) != len(self.sizes) or not set(self.sizes) <= {2, 3, 4, 5}:
            raise RecipeError(f"sizes={self.sizes}", where="sizes", fix="some of 2, 3, 4, 5, such as 3,4")


PRESETS = {
    "paper": Settings(),
    # The ranges that the tiny model was pretrained on; its pretraining had other multisets of numbers than both splits.
    "tiny": Settings(
        sizes=(3,), max_number=30, max_target=60, train_size=2048, test_size=256, train_buckets=("train",)
    ),
}


class Problem(NamedTuple):
    """`numbers` in the order shown to the model, and an expression over all of them that equals the target."""

    numbers: tuple[int, ...]
    target: int
    solution: str


# A number, or (operator, left, right).
Expression = int | tuple[str, "Expression", "Expression"]
OPERATORS = "+-*/"
ROUNDING = 1e-9
"""Over up to four numbers of two digits, a value that is not a whole number is further than 1e-6 from the next one; the
reward judges every solution exactly before it is written."""


def solve(numbers: Sequence[int], target: int) -> str | None:
    """An expression over all the numbers that equals the target; None where there is none."""
    found = expressions(tuple(sorted(numbers, reverse=True))).items()
    return next((text(expression) for value, expression in found if abs(value - target) < ROUNDING), None)


def expressions(numbers: tuple[int, ...]) -> dict[float, Expression]:
    """Every value of an expression that uses each of the numbers once, with the first one found: sums before products.

    Expressions over some of the numbers and over the others are put together in every way.
    """
    if len(numbers) == 1:
        return {numbers[0]: numbers[0]}
    found: dict[float, Expression] = {}
    halves = [(expressions(left).items(), expressions(right).items()) for left, right in _halves(numbers)]
    for operator in OPERATORS:
        for left, right in halves:
            for (a, x), (b, y) in product(left, right):
                if operator == "+":
                    found.setdefault(a + b, ("+", x, y))
                elif operator == "*":
                    found.setdefault(a * b, ("*", x, y))
                elif operator == "-":
                    found.setdefault(a - b, ("-", x, y))
                    found.setdefault(b - a, ("-", y, x))
                else:
                    if b:
                        found.setdefault(a / b, ("/", x, y))
                    if a:
                        found.setdefault(b / a, ("/", y, x))
    return found


def _halves(numbers: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The ways to cut numbers in two parts, neither of them empty; the first number is always in the left one."""
    places = range(1, len(numbers))
    for size in reversed(range(len(numbers) - 1)):
        for chosen in combinations(places, size):
            left = tuple(numbers[place] for place in (0, *chosen))
            yield left, tuple(numbers[place] for place in places if place not in chosen)


def text(expression: Expression) -> str:
    """An expression with the fewest parentheses: `(8 - 3 + 1) * 4`."""
    if isinstance(expression, int):
        return str(expression)
    operator, left, right = expression
    loose = {"+": "", "-": "+-", "*": "+-", "/": "+-*/"}[operator]
    shown = []
    for side, weaker in ((left, "+-" if operator in "*/" else ""), (right, loose)):
        inner = text(side)
        shown.append(f"({inner})" if isinstance(side, tuple) and side[0] in weaker else inner)
    return f"{shown[0]} {operator} {shown[1]}"


PATIENCE = 100_000
"""Draws in a row without a new problem after which the settings count as exhausted."""


def generate(settings: Settings, buckets: Sequence[str], *, seed: int) -> Iterator[Problem]:
    """Different problems, drawn evenly from all solvable (numbers, target) of each size, sizes in equal shares.

    Numbers and target are drawn at random until they have a solution. The stream depends on the ranges, sizes, buckets
    and seed alone: a longer draw starts with the shorter one.

    Args:
        buckets: only multisets of numbers from these buckets (see `bucket`).
        seed: any non-negative integer.

    Raises:
        RecipeError: the settings hold no further problem, or so few that they are not found.
    """
    rng = random.Random(f"{seed} {sorted(buckets)}")
    seen: set[tuple[tuple[int, ...], int]] = set()
    while True:
        size = rng.choice(settings.sizes)
        for _ in range(PATIENCE):
            numbers = tuple(rng.randint(settings.min_number, settings.max_number) for _ in range(size))
            target = rng.randint(settings.min_target, settings.max_target)
            key = tuple(sorted(numbers)), target
            if key not in seen and bucket(numbers) in buckets and (solution := solve(numbers, target)):
                seen.add(key)
                yield Problem(numbers, target, solution)
                break
        else:
            raise RecipeError(
                f"no further problem of {size} numbers after {len(seen)} different ones",
                where=f"buckets {', '.join(buckets)}",
                fix="ask for fewer problems or widen the ranges",
            )


REPOSITORY = "Jiayi-Pan/Countdown-Tasks-3to4"


def load_table(path: Path | None, revision: str) -> tuple[pa.Table, str]:
    """The data set from the hub, or from a local parquet file; and its source for the manifest."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if path is None:
        table, commit = load_hub_table(REPOSITORY, split="train", revision=revision)
        source = f"{REPOSITORY}@{commit}"
    else:
        try:
            table, source = pq.read_table(path), f"{path.name}, SHA-256 {sha256(path)}"
        except (OSError, pa.ArrowInvalid) as error:
            fix = "give a copy of the data set's parquet file"
            raise RecipeError(f"{path} cannot be read: {error}", where="--hub_path", fix=fix) from error
    if missing := {"nums", "target"} - set(table.column_names):
        raise RecipeError(
            f"the data set has no column {', '.join(sorted(missing))}, only {', '.join(table.column_names)}",
            where=source,
            fix="use a file with nums (a list of numbers) and target (a number)",
        )
    return table, source


def from_table(
    table: pa.Table, settings: Settings, buckets: Sequence[str], *, seed: int, dropped: Counter[str]
) -> Iterator[Problem]:
    """The problems of a table whose numbers are in these buckets, in a seeded random order, each once and solved.

    Args:
        dropped: counts the rows that are left out: other_size, out_of_range, unsolvable, duplicate.
    """
    dropped.update(other_size=0, out_of_range=0, unsolvable=0, duplicate=0)
    rows = list(zip(table["nums"].to_pylist(), table["target"].to_pylist(), strict=True))
    random.Random(seed).shuffle(rows)
    seen: set[tuple[tuple[int, ...], int]] = set()
    for numbers, target in rows:
        if bucket(numbers) not in buckets:
            continue
        key = tuple(sorted(numbers)), target
        inside = settings.min_number <= min(numbers) and max(numbers) <= settings.max_number
        if len(numbers) not in settings.sizes:
            dropped["other_size"] += 1
        elif not (inside and settings.min_target <= target <= settings.max_target):
            dropped["out_of_range"] += 1
        elif key in seen:
            dropped["duplicate"] += 1
        elif solution := solve(numbers, target):
            seen.add(key)
            yield Problem(tuple(numbers), target, solution)
        else:
            dropped["unsolvable"] += 1
