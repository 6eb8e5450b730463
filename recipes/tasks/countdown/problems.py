"""Countdown's problems and their rows: a solver by recursion, the generator, and the splits for `prepare`."""

import json
import operator
import random
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import compress, islice, product
from pathlib import Path
from typing import NamedTuple

from recipes.data.rows import Row, Split, make_row
from recipes.errors import RecipeError
from recipes.tasks.prepare import bucket_of, load_table


@dataclass(frozen=True)
class Settings:
    """Problems of a data set; the defaults are those of the hub's `Jiayi-Pan/Countdown-Tasks-3to4`."""

    # How many numbers a problem has, at most four; each size is equally likely (in the hub's set 49% have three).
    sizes: tuple[int, ...] = (3, 4)
    max_number: int = 99  # the smallest number is 1
    max_target: int = 99  # the smallest target is 1
    train_size: int = 4096  # problems
    test_size: int = 512
    # Buckets of the training split's multisets of numbers (see `bucket`); the test split has `test`.
    train_buckets: tuple[str, ...] = ("pretrain", "train")


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


def bucket(numbers: Sequence[int]) -> str:
    """The bucket of a multiset of numbers: `pretrain`, `train` or `test`. Neither order nor target plays a part."""
    return bucket_of(",".join(map(str, sorted(numbers))))


# A number, or (operator, left, right).
Expression = int | tuple[str, "Expression", "Expression"]
OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
# Operator -> the operators that need parentheses in its left operand, and in its right operand.
LOOSER = {"+": ("", ""), "-": ("", "+-"), "*": ("+-", "+-"), "/": ("+-", "+-*/")}
ROUNDING = 1e-9
"""For up to four two-digit numbers, a value that is not an integer is more than 1e-6 from the nearest integer; the
reward judges every solution exactly before it is written."""


def solve(numbers: Sequence[int], target: int) -> str | None:
    """An expression over all the numbers that equals the target; None where there is none."""
    found = expressions(tuple(sorted(numbers, reverse=True))).items()
    return next((text(expression) for value, expression in found if abs(value - target) < ROUNDING), None)


def expressions(numbers: tuple[int, ...]) -> dict[float, Expression]:
    """Every value that an expression over all the numbers can have -> the first such expression, sums before products.

    Every split of the numbers into two parts is tried, with every operator between the parts' expressions.
    """
    if len(numbers) == 1:
        return {numbers[0]: numbers[0]}
    found: dict[float, Expression] = {}
    halves = [(expressions(left).items(), expressions(right).items()) for left, right in _halves(numbers)]
    for sign, calculate in OPERATORS.items():
        for left, right in halves:
            for (a, x), (b, y) in product(left, right):
                if b or sign != "/":
                    found.setdefault(calculate(a, b), (sign, x, y))
                if sign == "-" or (sign == "/" and a):
                    found.setdefault(calculate(b, a), (sign, y, x))
    return found


def _halves(numbers: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The ways to cut numbers in two parts, neither of them empty; the first number is always in the left one.

    The largest left parts come first: the order decides which expression `expressions` finds first.
    """
    first, *rest = numbers
    for mask in sorted(product((True, False), repeat=len(rest)), key=sum, reverse=True)[1:]:  # not all to the left
        yield (first, *compress(rest, mask)), tuple(n for n, taken in zip(rest, mask, strict=True) if not taken)


def text(expression: Expression) -> str:
    """An expression with the fewest parentheses: `(8 - 3 + 1) * 4`."""
    if isinstance(expression, int):
        return str(expression)
    sign, *sides = expression
    shown = [
        f"({text(side)})" if isinstance(side, tuple) and side[0] in looser else text(side)
        for side, looser in zip(sides, LOOSER[sign], strict=True)
    ]
    return f" {sign} ".join(shown)


PATIENCE = 100_000
"""Draws in a row without a new problem after which `generate` ends."""


def generate(settings: Settings, buckets: Sequence[str], *, seed: int) -> Iterator[Problem]:
    """Different problems from these buckets, drawn evenly from all solvable (numbers, target) of each size.

    Sizes have equal shares. The stream depends on the ranges, sizes, buckets and seed alone: a longer draw starts with
    the shorter one.
    """
    rng = random.Random(f"{seed} {sorted(buckets)}")
    seen: set[Hashable] = set()

    def drawn() -> Iterator[tuple[list[int], int]]:
        size = rng.choice(settings.sizes)
        for _ in range(PATIENCE):
            numbers = [rng.randint(1, settings.max_number) for _ in range(size)]
            yield numbers, rng.randint(1, settings.max_target)

    return iter(lambda: next(solved(drawn(), settings.sizes, buckets, seen, Counter()), None), None)


def solved(
    drawn: Iterable[tuple[list[int], int]],
    sizes: Sequence[int],
    buckets: Sequence[str],
    seen: set[Hashable],
    dropped: Counter[str],
) -> Iterator[Problem]:
    """The problems among (numbers, target) whose numbers are in these buckets, each once and with a solution.

    `seen` has the problems so far, by sorted numbers and target; new ones are added, and others counted by reason.
    """
    for numbers, target in drawn:
        key = tuple(sorted(numbers)), target
        if bucket(numbers) not in buckets:
            continue
        if len(numbers) not in sizes:
            dropped["other_size"] += 1
        elif key in seen:
            dropped["duplicate"] += 1
        elif solution := solve(numbers, target):
            seen.add(key)
            yield Problem(tuple(numbers), target, solution)
        else:
            dropped["unsolvable"] += 1


DATA_SOURCE = "countdown"
REPOSITORY = "Jiayi-Pan/Countdown-Tasks-3to4"
ABILITY = "math"

# Fixed text: the tiny tokenizer is trained on it, so a change here requires a new tiny model.
TEMPLATE = (
    "Make {target} from the numbers {numbers}. Use each number exactly once, with +, -, * and /. "
    "Reason in <think> </think>, then write the equation in <answer> </answer>, "
    "for example <answer>(1 + 2) / 3</answer>."
)


def prompt(numbers: Sequence[int], target: int) -> str:
    """The user's message for one problem, numbers in the order given."""
    return TEMPLATE.format(target=target, numbers=", ".join(map(str, numbers)))


def gold_response(solution: str, reasoning: str | None = None) -> str:
    """A response that earns full marks; its reasoning is the solution itself where none is given."""
    return f"<think>{solution if reasoning is None else reasoning}</think>\n<answer>{solution}</answer>"


def ground_truth(numbers: Sequence[int], target: int) -> str:
    """The truth that the reward reads, as JSON: `{"target": 24, "numbers": [3, 8, 1, 1]}`."""
    return json.dumps({"target": target, "numbers": list(numbers)})


def rows(problems: Iterable[Problem], split: str, size: int, source: str) -> Iterator[Row]:
    """A row for each of the first `size` problems. Raises RecipeError where the source has fewer."""
    count = 0
    for index, problem in enumerate(islice(problems, size)):
        count = index + 1
        yield make_row(
            data_source=DATA_SOURCE,
            prompt=prompt(problem.numbers, problem.target),
            ground_truth=ground_truth(problem.numbers, problem.target),
            ability=ABILITY,
            extra_info={
                "split": split,
                "index": index,
                "numbers": list(problem.numbers),
                "target": problem.target,
                "solution": gold_response(problem.solution),
            },
        )
    if count < size:
        what = f"{size:,} problems were asked for and the source has {count:,} that fit"
        raise RecipeError(what, where=source, fix=f"give --{split}_size {count} or less")


def multiset(row: Row) -> tuple[int, ...]:
    """The numbers, sorted; train and test may not share them."""
    return tuple(sorted(row["extra_info"]["numbers"]))


def counted_by(row: Row) -> dict[str, int]:
    """The values by which the manifest counts rows."""
    return {"sizes": len(row["extra_info"]["numbers"])}


def generated(settings: Settings, *, seed: int) -> Iterator[Split]:
    """Splits of generated problems, for `prepare`."""
    source = "generated by recipes.tasks.countdown.problems"
    return _splits(settings, seed, source, lambda buckets, _: generate(settings, buckets, seed=seed))


def from_hub(settings: Settings, *, seed: int, path: Path | None, revision: str) -> Iterator[Split]:
    """Splits of the hub's data set, or of a local parquet file, for `prepare`; of the ranges, `sizes` alone acts."""
    files = None if path is None else [path]
    table, source = load_table(REPOSITORY, ("nums", "target"), revision=revision, files=files)

    def drawn(buckets: Sequence[str], dropped: Counter[str]) -> Iterator[Problem]:
        found = list(zip(table["nums"].to_pylist(), table["target"].to_pylist(), strict=True))
        random.Random(seed).shuffle(found)
        return solved(found, settings.sizes, buckets, set(), dropped)

    return _splits(settings, seed, source, drawn)


def _splits(
    settings: Settings, seed: int, source: str, draw: Callable[[Sequence[str], Counter[str]], Iterator[Problem]]
) -> Iterator[Split]:
    sizes = {"train": settings.train_size, "test": settings.test_size}
    for split, buckets in {"train": settings.train_buckets, "test": ("test",)}.items():
        dropped = Counter[str]()
        found = rows(draw(buckets, dropped), split, sizes[split], f"{source}, buckets {', '.join(buckets)}")
        facts = {"source": source, "seed": seed, "settings": asdict(settings), "dropped": dropped}
        yield Split(split, found, facts, sizes[split])
