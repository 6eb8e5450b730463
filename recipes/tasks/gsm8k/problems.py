"""GSM8K's questions: the published ones, and word problems generated in their style."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from recipes.data.hub import load_hub_table
from recipes.data.splits import bucket_of
from recipes.errors import RecipeError
from recipes.provenance import sha256

MARK = "####"
"""The mark before the number at the end of a worked answer."""
REPOSITORY = "openai/gsm8k"
# Rows of the data set as published; a source with other counts is incomplete.
PUBLISHED = {"train": 7473, "test": 1319}


class Question(NamedTuple):
    """A question with its worked answer, `reasoning #### number`; `where` names its line for an error message."""

    question: str
    answer: str
    where: str


def from_hub(split: str, revision: str) -> tuple[list[Question], str]:
    """The questions of a split of `openai/gsm8k`, and the source for the manifest."""
    table, commit = load_hub_table(REPOSITORY, name="main", split=split, revision=revision)
    source = f"{REPOSITORY}@{commit}"
    pairs = zip(table["question"].to_pylist(), table["answer"].to_pylist(), strict=True)
    return [Question(*both, f"{source}, {split} row {index}") for index, both in enumerate(pairs)], source


def from_folder(folder: Path, split: str) -> tuple[list[Question], str]:
    """The questions of `<folder>/<split>.jsonl`, one JSON object with `question` and `answer` on each line."""
    path = folder / f"{split}.jsonl"
    if not path.is_file():
        raise RecipeError(
            f"there is no {path}", where="--source", fix="name a folder that holds train.jsonl and test.jsonl"
        )
    with path.open(encoding="utf-8") as lines:
        questions = [_parsed(line, f"{path}, line {number}") for number, line in enumerate(lines, 1) if line.strip()]
    return questions, f"{path.name}, SHA-256 {sha256(path)}"


def _parsed(line: str, where: str) -> Question:
    example = 'each line is {"question": "...", "answer": "... #### 72"}'
    try:
        record = json.loads(line)
    except ValueError as error:
        raise RecipeError(f"the line is not JSON: {error}", where=where, fix=example) from error

    def field(name: str) -> str:
        value = record.get(name) if isinstance(record, dict) else None
        if not isinstance(value, str) or not value.strip():
            raise RecipeError(f"the line has no {name}", where=where, fix=example)
        return value

    return Question(field("question"), field("answer"), where)


class Template(NamedTuple):
    """`steps` as (left, operator, right); one of `questions` is asked, and `sentences` explain the steps."""

    name: str
    steps: tuple[tuple[str, str, str], ...]
    questions: tuple[str, ...]
    sentences: tuple[str, ...]


TEMPLATES = (
    Template(
        "receive",
        (("a", "+", "b"),),
        (
            "{one} has {a} {items}. {two} gives {one} {b} more. How many {items} does {one} have now?",
            "{one} finds {a} {items} in the morning and {b} in the evening. How many {items} does {one} find?",
        ),
        ("{one} has {step1} {items}.",),
    ),
    Template(
        "give away",
        (("a", "-", "b"),),
        (
            "{one} has {a} {items} and gives {b} of them to {two}. How many {items} does {one} have left?",
            "There are {a} {items} on the table. {one} takes {b} away. How many {items} are left?",
        ),
        ("There are {step1} {items} left.",),
    ),
    Template(
        "boxes",
        (("a", "*", "b"),),
        (
            "{one} has {a} {boxes} with {b} {items} in each. How many {items} does {one} have?",
            "There are {b} {items} in a full box. {one} fills {a} {boxes}. How many {items} is that?",
        ),
        ("That is {step1} {items}.",),
    ),
    Template(
        "share",
        (("a", "/", "b"),),
        (
            "{one} shares {a} {items} equally among {b} friends. How many {items} does each friend get?",
            "{one} puts {a} {items} into {b} {boxes}, the same number in each. How many {items} are in each?",
        ),
        ("Each gets {step1} {items}.",),
    ),
    Template(
        "receive and give",
        (("a", "+", "b"), ("x", "-", "c")),
        (
            "{one} has {a} {items}, buys {b} more and gives {c} to {two}. How many {items} does {one} have left?",
            "{one} picks {a} {items} and {two} picks {b}. They give {c} away. How many {items} are left?",
        ),
        ("First there are {step1} {items}.", "Then there are {step2} {items}."),
    ),
    Template(
        "more than",
        (("a", "+", "b"), ("a", "+", "x")),
        (
            "{one} has {a} {items}. {two} has {b} more than {one}. How many {items} do they have together?",
            "{one} sells {a} {items} on Monday and {b} more than that on Tuesday. How many {items} in both days?",
        ),
        ("The second number is {step1} {items}.", "Together that is {step2} {items}."),
    ),
    Template(
        "times as many",
        (("a", "*", "b"), ("a", "+", "x")),
        (
            "{one} has {a} {items}. {two} has {b} times as many. How many {items} do they have together?",
            "{one} reads {a} pages on Monday and {b} times as many on Tuesday. How many pages does {one} read?",
        ),
        ("The second number is {step1}.", "Together that is {step2}."),
    ),
    Template(
        "boxes and more",
        (("a", "*", "b"), ("x", "+", "c")),
        (
            "{one} buys {a} {boxes} of {b} {items} and already has {c}. How many {items} does {one} have in all?",
            "{one} fills {a} {boxes} with {b} {items} each and has {c} {items} left. How many {items} are there?",
        ),
        ("The {boxes} hold {step1} {items}.", "In all there are {step2} {items}."),
    ),
    Template(
        "boxes and fewer",
        (("a", "*", "b"), ("x", "-", "c")),
        (
            "{one} has {a} {boxes} of {b} {items} and gives {c} {items} to {two}. How many {items} are left?",
            "There are {a} {boxes} with {b} {items} each, but {c} of the {items} are bad. How many {items} are good?",
        ),
        ("The {boxes} hold {step1} {items}.", "There remain {step2} {items}."),
    ),
    Template(
        "change",
        (("a", "*", "b"), ("c", "-", "x")),
        (
            "{one} buys {a} {items} for {b} dollars each and pays with {c} dollars. How many dollars come back?",
            "One of the {items} costs {b} dollars. {one} has {c} dollars and buys {a}. How many dollars are left?",
        ),
        ("The {items} cost {step1} dollars.", "There remain {step2} dollars."),
    ),
    Template(
        "put together and share",
        (("a", "+", "b"), ("x", "/", "c")),
        (
            "{one} has {a} {items} and {two} has {b}. They share them equally among {c} friends. "
            "How many {items} does each friend get?",
            "{one} bakes {a} cakes, {two} bakes {b}, and they put them into {c} {boxes}, the same number in each. "
            "How many cakes are in each?",
        ),
        ("Together there are {step1}.", "Each gets {step2}."),
    ),
    Template(
        "share and give",
        (("a", "/", "b"), ("x", "-", "c")),
        (
            "{one} and friends share {a} {items} equally among {b} children. {one} gives {c} of this share away. "
            "How many {items} does {one} have left?",
            "They put {a} {items} into {b} {boxes}, the same number in each. {one} takes {c} out of one of them. "
            "How many {items} are left in it?",
        ),
        ("Each share is {step1} {items}.", "Then {step2} {items} are left."),
    ),
)

NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gina", "Hugo", "Iris", "Jack", "Kim", "Leo", "Mia", "Noah")
ITEMS = ("apples", "books", "cards", "coins", "eggs", "flowers", "marbles", "nuts", "pears", "pens", "shells", "stamps")
BOXES = ("bags", "baskets", "boxes", "jars")


RESULTS = ("x", "y")
# A template counts as impossible after so many draws of numbers. The rarest template fits some hundredth draw.
TRIES = 20_000
# The settings count as exhausted after so many repeated questions in a row.
PATIENCE = 200


@dataclass(frozen=True)
class WordSettings:
    """Generated problems of a data set.

    Args:
        steps: how many calculations a problem may have; each number of steps is equally likely.
        min_number, max_number: range of the given numbers, both ends included; 2 or more, so that plurals are right.
        max_result: largest result of any step, and largest number that is divided; every result is whole and >= 2.
        train_size, test_size: problems in each split.
        train_buckets, test_buckets: where the calculations of each split come from (see `bucket_of`).
    """

    steps: tuple[int, ...] = (1, 2)
    min_number: int = 2
    max_number: int = 20
    max_result: int = 60
    train_size: int = 2048
    test_size: int = 256
    train_buckets: tuple[str, ...] = ("train",)
    test_buckets: tuple[str, ...] = ("test",)

    def __post_init__(self) -> None:
        if min(self.train_size, self.test_size) < 1:
            raise RecipeError("a split would be empty", where="train_size, test_size", fix="ask for 1 or more")


TINY = WordSettings()


class WordProblem(NamedTuple):
    """A question, the template that it was made from, its given numbers and results, and who and what it is about."""

    question: str
    template: Template
    values: dict[str, int]
    story: dict[str, str]

    @property
    def gold(self) -> int:
        """The result of the last step."""
        return self.values[RESULTS[len(self.template.steps) - 1]]


def generate(settings: WordSettings, buckets: Sequence[str], *, seed: int) -> Iterator[Question]:
    """Questions with worked answers in GSM8K's format, with its annotations; see `word_problems`."""
    for problem in word_problems(settings, buckets, seed=seed):
        yield Question(problem.question, worked_answer(problem), f"template {problem.template.name}")


def word_problems(settings: WordSettings, buckets: Sequence[str], *, seed: int) -> Iterator[WordProblem]:
    """Yield different problems whose calculations (steps and numbers) are in one of `buckets`.

    Each number of steps is equally likely, and so is each template with that number of steps. Two splits from different
    buckets share no calculation, even if their stories have other names and things. The problems depend on nothing but
    the settings' steps and ranges, the buckets and the seed.

    Raises:
        RecipeError: the settings hold no further question, or so few that they are not found.
    """
    rng = random.Random(f"{seed} {sorted(buckets)}")
    kinds = {steps: [t for t in TEMPLATES if len(t.steps) == steps] for steps in settings.steps}
    seen: set[str] = set()
    repeats = 0
    while repeats < PATIENCE and all(kinds.values()):
        possible = kinds[rng.choice(settings.steps)]
        template = rng.choice(possible)
        values = _in_bucket(template, settings, buckets, rng)
        if values is None:
            possible.remove(template)
            continue
        problem = as_story(template, values, rng)
        repeats = repeats + 1 if problem.question in seen else 0
        if not repeats:
            seen.add(problem.question)
            yield problem
    raise RecipeError(
        f"no further word problem after {len(seen)} different ones",
        where=f"buckets {', '.join(buckets)}",
        fix="ask for fewer problems or widen the ranges",
    )


def _in_bucket(
    template: Template, settings: WordSettings, buckets: Sequence[str], rng: random.Random
) -> dict[str, int] | None:
    """Draw numbers until the calculation is in one of `buckets`; None after `TRIES` draws."""
    for _ in range(TRIES):
        values = calculation(template, settings, rng)
        if values and bucket_of(calculation_key(template, values)) in buckets:
            return values
    return None


def calculation(template: Template, settings: WordSettings, rng: random.Random) -> dict[str, int] | None:
    """Draw the given numbers and calculate every step; None if a result is out of range or not whole."""
    given = dict.fromkeys(field for left, _, right in template.steps for field in (left, right) if field not in RESULTS)
    values = {field: rng.randint(settings.min_number, settings.max_number) for field in given}
    first = template.steps[0]
    if first[1] == "/":  # a random dividend is rarely a multiple of its divisor
        values["a"] = values["b"] * rng.randint(2, max(2, settings.max_result // values["b"]))
    for result, (left, operator, right) in zip(RESULTS, template.steps, strict=False):
        value = calculated(values[left], operator, values[right])
        if value is None:
            return None
        values[result] = value
    inside = all(2 <= value <= settings.max_result for value in values.values())
    return values if inside else None


def calculated(p: int, operator: str, q: int) -> int | None:
    """The result of one step, or None for a division that leaves a remainder."""
    if operator == "/":
        return None if p % q else p // q
    return {"+": p + q, "-": p - q, "*": p * q}[operator]


def calculation_key(template: Template, values: dict[str, int]) -> str:
    """The calculation as text, such as `a*b;x+c 3,4,5`: problems that differ only in their story share it."""
    steps = ";".join("".join(step) for step in template.steps)
    return f"{steps} {','.join(str(values[field]) for field in 'abc' if field in values)}"


def as_story(template: Template, values: dict[str, int], rng: random.Random) -> WordProblem:
    """A calculation as a story, with names and things at random."""
    one, two = rng.sample(NAMES, 2)
    story = {"one": one, "two": two, "items": rng.choice(ITEMS), "boxes": rng.choice(BOXES)}
    question = rng.choice(template.questions).format(**values, **story)
    return WordProblem(question, template, values, story)


def worked_answer(problem: WordProblem) -> str:
    """The answer as GSM8K writes it: a sentence for each step, with its annotation, and the mark with the gold."""
    steps = {}
    for number, (result, (left, operator, right)) in enumerate(zip(RESULTS, problem.template.steps, strict=False), 1):
        p, q, value = (problem.values[field] for field in (left, right, result))
        steps[f"step{number}"] = f"{p} {operator} {q} = <<{p}{operator}{q}={value}>>{value}"
    sentences = [sentence.format(**problem.values, **problem.story, **steps) for sentence in problem.template.sentences]
    return "\n".join([*sentences, f"{MARK} {problem.gold}"])
