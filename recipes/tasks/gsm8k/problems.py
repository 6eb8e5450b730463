"""GSM8K's questions: the published ones, and word problems generated in their style."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import yaml

from recipes.data.hub import load_hub_table
from recipes.data.splits import bucket_of
from recipes.errors import RecipeError
from recipes.files import sha256

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
    steps: tuple[tuple[str, ...], ...]
    questions: tuple[str, ...]
    sentences: tuple[str, ...]


WORDS = yaml.safe_load(Path(__file__).with_name("word_problems.yaml").read_text(encoding="utf-8"))
TEMPLATES = tuple(
    Template(each["name"], tuple(tuple(step.split()) for step in each["steps"]), each["questions"], each["sentences"])
    for each in WORDS["templates"]
)
NAMES, ITEMS, BOXES = WORDS["names"], WORDS["items"], WORDS["boxes"]

RESULTS = ("x", "y")
# A template counts as impossible after this many draws of numbers. The rarest one fits about one draw in a hundred.
TRIES = 20_000
# The settings count as exhausted after this many repeated questions in a row.
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
    if template.steps[0][1] == "/":  # a random dividend is rarely a multiple of its divisor
        values["a"] = values["b"] * rng.randint(2, max(2, settings.max_result // values["b"]))
    for result, (left, operator, right) in zip(RESULTS, template.steps, strict=False):
        value = calculated(values[left], operator, values[right])
        if value is None:
            return None
        values[result] = value
    return values if all(2 <= value <= settings.max_result for value in values.values()) else None


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
    lines = []
    for number, (left, operator, right) in enumerate(problem.template.steps):
        p, q, value = (problem.values[field] for field in (left, right, RESULTS[number]))
        step = {f"step{number + 1}": f"{p} {operator} {q} = <<{p}{operator}{q}={value}>>{value}"}
        lines.append(problem.template.sentences[number].format(**problem.values, **problem.story, **step))
    return "\n".join([*lines, f"{MARK} {problem.gold}"])
