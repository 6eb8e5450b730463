"""Countdown's data: problems, prompt, rows, presets."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from recipes.data.hub import load_hub_table
from recipes.data.prepare import Split, sorted_counts
from recipes.data.rows import make_row
from recipes.data.splits import SHARES, bucket_of
from recipes.errors import RecipeError
from recipes.provenance import sha256
from recipes.tasks.countdown.solver import check_exact, count, evaluate, solve


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
        if not self.sizes or len(set(self.sizes)) != len(self.sizes):
            raise RecipeError(f"sizes={self.sizes} is empty or repeats a size", where="sizes", fix="for instance 3,4")
        for size in self.sizes:
            check_exact(size, self.max_number, self.max_target)
        unknown = (set(self.train_buckets) | set(self.test_buckets)) - set(SHARES)
        if unknown or set(self.train_buckets) & set(self.test_buckets):
            raise RecipeError(
                f"train_buckets={self.train_buckets} and test_buckets={self.test_buckets} overlap or are not known",
                where="train_buckets, test_buckets",
                fix=f"choose different ones from {', '.join(SHARES)}",
            )


PRESETS = {
    "paper": Settings(),
    # The ranges that the tiny model was pretrained on; its pretraining had other multisets of numbers than both splits.
    "tiny": Settings(
        sizes=(3,), max_number=30, max_target=60, train_size=2048, test_size=256, train_buckets=("train",)
    ),
}


DATA_SOURCE = "countdown"
ABILITY = "math"

# One fixed sentence: the tiny tokenizer is trained on it, so a change here asks for a new tiny model.
TEMPLATE = (
    "Make {target} from the numbers {numbers}. Use each number exactly once, with +, -, * and /. "
    "Reason in <think> </think>, then write the equation in <answer> </answer>, "
    "for example <answer>(1 + 2) / 3</answer>."
)


def prompt(numbers: Sequence[int], target: int) -> str:
    """The user's message for one problem, numbers in the order given."""
    return TEMPLATE.format(target=target, numbers=", ".join(map(str, numbers)))


def gold_response(solution: str, reasoning: str | None = None) -> str:
    """A response that earns full marks: `<think>REASONING</think>`, a line break, `<answer>SOLUTION</answer>`.

    Args:
        solution: an expression such as `(8 - 3 + 1) * 4`, without `= target`.
        reasoning: the text between the think tags; the solution itself where none is given.
    """
    return f"<think>{solution if reasoning is None else reasoning}</think>\n<answer>{solution}</answer>"


def ground_truth(numbers: Sequence[int], target: int) -> str:
    """Return what the reward reads, as JSON: `{"target": 24, "numbers": [3, 8, 1, 1]}`."""
    return f'{{"target": {target}, "numbers": [{", ".join(map(str, numbers))}]}}'


# Numbers that each expression of a size gets in one sweep over all of them: some thousand problems come out.
DRAWS = {2: 2048, 3: 512, 4: 224, 5: 16}
# Sweeps in a row without one new problem after which the settings count as exhausted.
PATIENCE = 16


class Problem(NamedTuple):
    """`numbers` in the order shown to the model; `solution` is the plainest of `num_solutions` different ones."""

    numbers: tuple[int, ...]
    target: int
    solution: str
    num_solutions: int


def generate(settings: Settings, buckets: Sequence[str], *, seed: int) -> Iterator[Problem]:
    """Problems drawn evenly from all solvable (numbers, target) of each size, sizes in equal shares.

    The same as drawing numbers and target at random until they have a solution, and many times as fast: every
    expression gets numbers at random, values that are whole and in range become targets, and a problem that k
    expressions lead to is kept with probability 1/k. The stream depends on the ranges, sizes, buckets and seed alone: a
    longer draw starts with the shorter one.

    Args:
        buckets: only multisets of numbers from these buckets (see `recipes.data.prepare`).
        seed: any non-negative integer.

    Raises:
        RecipeError: the settings hold no further problem, or so few that they are not found.
    """
    stream = sum(1 << place for place, name in enumerate(SHARES) if name in buckets)
    rng = np.random.default_rng([seed, stream])
    seen: set[tuple[tuple[int, ...], int]] = set()
    ready: dict[int, deque[Problem]] = {size: deque() for size in settings.sizes}
    while True:
        for size in rng.choice(settings.sizes, 4096).tolist():
            if not ready[size]:
                ready[size].extend(_refill(settings, size, buckets, rng, seen))
            yield ready[size].popleft()


def _refill(
    settings: Settings,
    size: int,
    buckets: Sequence[str],
    rng: np.random.Generator,
    seen: set[tuple[tuple[int, ...], int]],
) -> list[Problem]:
    for _ in range(PATIENCE):
        problems = []
        for problem in draw(settings, size, buckets, rng):
            key = tuple(sorted(problem.numbers)), problem.target
            if key not in seen:
                seen.add(key)
                problems.append(problem)
        if problems:
            return problems
    raise RecipeError(
        f"no further problem of {size} numbers from {settings.min_number} to {settings.max_number} with a target from "
        f"{settings.min_target} to {settings.max_target} after {len(seen)} different ones",
        where=f"buckets {', '.join(buckets)}",
        fix="ask for fewer problems or widen the ranges",
    )


def draw(settings: Settings, size: int, buckets: Sequence[str], rng: np.random.Generator) -> Iterator[Problem]:
    """Some thousand problems of one size, each independent of whether it came before."""
    numbers, targets = _sweep(settings, size, rng)
    inside = np.array([bucket(values) in buckets for values in numbers.tolist()], dtype=bool)
    numbers, targets = numbers[inside], targets[inside]
    solved = solve(numbers, targets)
    kept = rng.random(len(targets)) * solved.placed < 1  # the sweep tells equal numbers apart
    for place in np.flatnonzero(kept).tolist():
        values, target = tuple(numbers[place].tolist()), int(targets[place])
        yield Problem(values, target, solved.solutions[place], int(solved.counts[place]))


def _sweep(settings: Settings, size: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Numbers (hits, size) and targets (hits,) of the draws whose expression came out whole and in range, shuffled."""
    rows = count(size)
    drawn = rng.integers(settings.min_number, settings.max_number, (rows, size, DRAWS[size]), endpoint=True)
    kept, targets = [], []
    for row in range(rows):
        values = evaluate(size, row, drawn[row].astype(np.float64))
        hits = (values >= settings.min_target) & (values <= settings.max_target) & (values == np.rint(values))
        kept.append(drawn[row][:, hits].T)
        targets.append(values[hits])
    order = rng.permutation(sum(map(len, targets)))
    return np.concatenate(kept)[order], np.concatenate(targets).astype(np.int64)[order]


def rows(problems: Iterable[Problem], split: str) -> Iterator[dict[str, Any]]:
    """One row for each problem; `extra_info.num_solutions` grades its difficulty (fewer is harder)."""
    for index, problem in enumerate(problems):
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
                "solution": problem.solution,
                "num_solutions": problem.num_solutions,
            },
        )


def row_gold_response(row: dict[str, Any]) -> str:
    """The response that a row's stored solution stands for."""
    return gold_response(row["extra_info"]["solution"])


if TYPE_CHECKING:
    import pyarrow as pa

REPOSITORY = "Jiayi-Pan/Countdown-Tasks-3to4"
BATCH = 2048


def load_table(path: Path | None, revision: str) -> tuple[pa.Table, str]:
    """The data set from the hub, or from a local parquet file; and its source for the manifest."""
    if path is None:
        table, commit = load_hub_table(REPOSITORY, split="train", revision=revision)
        source = f"{REPOSITORY}@{commit}"
    else:
        table = _read_parquet(path)
        source = f"{path.name}, SHA-256 {sha256(path)}"
    missing = {"nums", "target"} - set(table.column_names)
    if missing:
        raise RecipeError(
            f"the data set has no column {', '.join(sorted(missing))}, only {', '.join(table.column_names)}",
            where=source,
            fix="use a file with nums (a list of numbers) and target (a number)",
        )
    return table, source


def _read_parquet(path: Path) -> pa.Table:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.read_table(path)
    except (OSError, pa.ArrowInvalid) as error:
        fix = "give a copy of the data set's parquet file"
        raise RecipeError(f"{path} cannot be read: {error}", where="--hub_path", fix=fix) from error


class HubProblems:
    """The problems of a table in a seeded random order, each once, solved, and without those that do not fit.

    Attributes:
        dropped: rows of the split read last that were left out: other_size, out_of_range, unsolvable, duplicate.
    """

    def __init__(self, table: pa.Table, settings: Settings, *, seed: int) -> None:
        self._table, self._settings, self._seed = table, settings, seed
        self.dropped: Counter[str] = Counter()

    def split(self, buckets: Sequence[str]) -> Iterator[Problem]:
        """The problems whose numbers are in these buckets."""
        self.dropped = Counter(other_size=0, out_of_range=0, unsolvable=0, duplicate=0)
        seen: set[tuple[tuple[int, ...], int]] = set()
        order = np.random.default_rng(self._seed).permutation(len(self._table))
        for start in range(0, len(order), BATCH):
            part = self._table.take(order[start : start + BATCH]).to_pydict()
            drawn = [
                (tuple(numbers), target)
                for numbers, target in zip(part["nums"], part["target"], strict=True)
                if bucket(numbers) in buckets and self._fits(numbers, target)
            ]
            solved = self._solved(drawn)
            for numbers, target in drawn:
                key = tuple(sorted(numbers)), target
                solution, solutions = solved[numbers, target]
                if key in seen:
                    self.dropped["duplicate"] += 1
                elif not solutions:
                    self.dropped["unsolvable"] += 1
                else:
                    seen.add(key)
                    yield Problem(numbers, target, solution, solutions)

    def _fits(self, numbers: list[int], target: int) -> bool:
        settings = self._settings
        if len(numbers) not in settings.sizes:
            self.dropped["other_size"] += 1
            return False
        inside = settings.min_number <= min(numbers) and max(numbers) <= settings.max_number
        if not (inside and settings.min_target <= target <= settings.max_target):
            self.dropped["out_of_range"] += 1
            return False
        return True

    def _solved(self, drawn: list[tuple[tuple[int, ...], int]]) -> dict[tuple[tuple[int, ...], int], tuple[str, int]]:
        """(numbers, target) -> the plainest solution, and how many there are."""
        answers: dict[tuple[tuple[int, ...], int], tuple[str, int]] = {}
        for size in self._settings.sizes:
            part = [problem for problem in drawn if len(problem[0]) == size]
            if part:
                solved = solve(np.array([numbers for numbers, _ in part]), np.array([target for _, target in part]))
                answers |= dict(zip(part, zip(solved.solutions, solved.counts.tolist(), strict=True), strict=True))
        return answers


@dataclass
class Tally:
    """Counts of a split's rows for the manifest, and their multisets of numbers, which no other split may have."""

    taken: set[tuple[int, ...]]
    multisets: set[tuple[int, ...]] = field(default_factory=set)
    sizes: Counter[int] = field(default_factory=Counter)
    solutions: Counter[int] = field(default_factory=Counter)

    def over(self, passing: Iterable[Problem]) -> Iterator[Problem]:
        """Hand problems on and count them."""
        for problem in passing:
            multiset = tuple(sorted(problem.numbers))
            if multiset in self.taken:
                raise RecipeError(f"train and test share the numbers {multiset}", fix="report this bug")
            self.multisets.add(multiset)
            self.sizes[len(multiset)] += 1
            self.solutions[problem.num_solutions] += 1
            yield problem


@dataclass
class Source:
    """A source of problems: the generator, or a hub table that was loaded."""

    settings: Settings
    seed: int
    name: str
    hub: HubProblems | None = None

    def splits(self) -> Iterator[Split]:
        """Train and test for `prepare`, in turn; no multiset of numbers is in both."""
        settings, taken = self.settings, set[tuple[int, ...]]()
        for split in ("train", "test"):
            size, buckets = getattr(settings, f"{split}_size"), getattr(settings, f"{split}_buckets")
            tally = Tally(taken)
            manifest = {"source": self.name, "seed": self.seed, "settings": asdict(settings), "buckets": buckets}
            problems = tally.over(self._problems(split, size, buckets))
            yield Split(split, rows(problems, split), size, manifest, partial(self._facts, tally))
            taken = tally.multisets

    def _problems(self, split: str, size: int, buckets: Sequence[str]) -> Iterator[Problem]:
        """Raises RecipeError where the source has fewer problems that fit than are wanted."""
        made = 0
        for problem in islice(self._all(buckets), size):
            yield problem
            made += 1
        if made < size:
            raise RecipeError(
                f"{size:,} {split} problems were asked for and the source has {made:,} that fit",
                where=f"{self.name}, buckets {', '.join(buckets)}",
                fix=f"give --{split}_size {made} or less, or widen sizes and ranges",
            )

    def _all(self, buckets: Sequence[str]) -> Iterator[Problem]:
        return self.hub.split(buckets) if self.hub else generate(self.settings, buckets, seed=self.seed)

    def _facts(self, tally: Tally) -> dict[str, Any]:
        counts = {"sizes": sorted_counts(tally.sizes), "num_solutions": sorted_counts(tally.solutions)}
        return {"dropped": dict(self.hub.dropped) if self.hub else {}, "counts": counts}


def generated(settings: Settings, *, seed: int) -> Source:
    """Problems from the generator."""
    return Source(settings, seed, "generated by recipes.tasks.countdown.data")


def from_hub(settings: Settings, *, seed: int, path: Path | None, revision: str) -> Source:
    """Problems of the hub's data set, or of a local copy."""
    table, name = load_table(path, revision)
    return Source(settings, seed, name, HubProblems(table, settings, seed=seed))
