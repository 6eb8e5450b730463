"""Word problems generated in GSM8K's style."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from operator import add, mul, sub
from pathlib import Path
from typing import NamedTuple

import yaml

from recipes.errors import RecipeError
from recipes.tasks.prepare import bucket_of

MARK = "####"
"""The mark before the number at the end of a worked answer."""


class Question(NamedTuple):
    """A question with its worked answer, `reasoning #### number`; `where` names its row for an error message."""

    question: str
    answer: str
    where: str


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

OPERATORS: dict[str, Callable[[int, int], int | None]] = {
    "+": add,
    "-": sub,
    "*": mul,
    "/": lambda p, q: None if p % q else p // q,  # a step's result is whole
}
RESULTS = ("x", "y")
LARGEST_GIVEN, LARGEST_RESULT = 20, 60  # a dividend counts as a result
PATIENCE = 200
"""Repeated questions in a row after which `word_problems` gives up."""


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


def generate(buckets: Sequence[str], *, seed: int) -> Iterator[Question]:
    """Questions with worked answers in GSM8K's format, with its annotations; see `word_problems`."""
    for problem in word_problems(buckets, seed=seed):
        yield Question(problem.question, worked_answer(problem), f"template {problem.template.name}")


def word_problems(buckets: Sequence[str], *, seed: int) -> Iterator[WordProblem]:
    """Yield different problems whose calculations (steps and numbers) are in one of `buckets`.

    Problems of one step and of two are equally likely, and so is each template with that number of steps. Two splits
    from different buckets share no calculation, not even one with another story.

    Raises:
        RecipeError: `PATIENCE` questions in a row were repeats: few or none are left.
    """
    rng = random.Random(f"{seed} {sorted(buckets)}")
    seen: set[str] = set()
    repeats = 0
    while repeats < PATIENCE:
        steps = rng.choice((1, 2))
        template = rng.choice([template for template in TEMPLATES if len(template.steps) == steps])
        values = None
        while not values or bucket_of(calculation_key(template, values)) not in buckets:
            values = calculation(template, rng)
        one, two = rng.sample(NAMES, 2)
        story = {"one": one, "two": two, "items": rng.choice(ITEMS), "boxes": rng.choice(BOXES)}
        question = rng.choice(template.questions).format(**values, **story)
        repeats = repeats + 1 if question in seen else 0
        if not repeats:
            seen.add(question)
            yield WordProblem(question, template, values, story)
    what = f"no further word problem after {len(seen)} different ones"
    raise RecipeError(what, where=f"buckets {', '.join(buckets)}", fix="ask for fewer problems")


def calculation(template: Template, rng: random.Random) -> dict[str, int] | None:
    """Draw the given numbers and calculate every step; None if a result is out of range or not whole."""
    given = dict.fromkeys(field for left, _, right in template.steps for field in (left, right) if field not in RESULTS)
    values = {field: rng.randint(2, LARGEST_GIVEN) for field in given}  # 2 or more, so that plurals are right
    if template.steps[0][1] == "/":  # a random dividend is rarely a multiple of its divisor
        values["a"] = values["b"] * rng.randint(2, LARGEST_RESULT // values["b"])
    for result, (left, operator, right) in zip(RESULTS, template.steps, strict=False):
        value = OPERATORS[operator](values[left], values[right])
        if value is None:
            return None
        values[result] = value
    return values if all(2 <= value <= LARGEST_RESULT for value in values.values()) else None


def calculation_key(template: Template, values: dict[str, int]) -> str:
    """The calculation as text, such as `a*b;x+c 3,4,5`: problems that differ only in their story share it."""
    steps = ";".join("".join(step) for step in template.steps)
    return f"{steps} {','.join(str(values[field]) for field in 'abc' if field in values)}"


def worked_answer(problem: WordProblem) -> str:
    """The answer as GSM8K writes it: a sentence for each step, with its annotation, and the result behind `####`."""
    lines = []
    for number, (left, operator, right) in enumerate(problem.template.steps):
        p, q, value = (problem.values[field] for field in (left, right, RESULTS[number]))
        step = {f"step{number + 1}": f"{p} {operator} {q} = <<{p}{operator}{q}={value}>>{value}"}
        lines.append(problem.template.sentences[number].format(**problem.values, **problem.story, **step))
    return "\n".join([*lines, f"{MARK} {problem.gold}"])
