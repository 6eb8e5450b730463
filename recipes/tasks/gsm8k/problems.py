"""GSM8K's rows, and word problems that are generated in its style."""

import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from itertools import islice
from operator import add, mul, sub
from pathlib import Path
from typing import NamedTuple

import yaml

from recipes.data.rows import Row, Split, make_row
from recipes.errors import RecipeError
from recipes.tasks.prepare import bucket_of, load_table

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
    """A generated question, its template, its given numbers and results, and who and what it is about."""

    question: str
    template: Template
    values: dict[str, int]
    story: dict[str, str]

    @property
    def gold(self) -> int:
        """The result of the last step."""
        return self.values[RESULTS[len(self.template.steps) - 1]]

    @property
    def answer(self) -> str:
        """The answer as GSM8K writes it: a sentence with an annotation for each step, and the result behind `####`."""
        lines = []
        for number, (left, operator, right) in enumerate(self.template.steps):
            p, q, value = (self.values[field] for field in (left, right, RESULTS[number]))
            step = {f"step{number + 1}": f"{p} {operator} {q} = <<{p}{operator}{q}={value}>>{value}"}
            lines.append(self.template.sentences[number].format(**self.values, **self.story, **step))
        return "\n".join([*lines, f"{MARK} {self.gold}"])

    @property
    def where(self) -> str:
        """The name of its template, for an error message."""
        return f"template {self.template.name}"


def word_problems(buckets: Sequence[str], *, seed: int) -> Iterator[WordProblem]:
    """Different problems whose calculations (steps and numbers) are in one of `buckets`.

    Problems of one step and of two are equally likely, and so is each template with that number of steps.
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


DATA_SOURCE = "gsm8k"
ABILITY = "math"

# One fixed sentence: a tiny tokenizer is trained on it, so a change here requires a new tiny model.
INSTRUCTION = "Reason step by step, then end with a line that holds #### and the answer as a number."

# What GSM8K writes for a calculator between `=` and the result: `48/2 = <<48/2=24>>24`.
_ANNOTATION = re.compile(r"<<[^<>]*>>")
_CALL = re.compile(r"<<([^<>=]*)=(-?\d*\.?\d+)>>")
_NUMBER = re.compile(r"-?(?:\d+|\d{1,3}(?:,\d{3})+)(?:\.\d+)?")


def prompt(question: str) -> str:
    """The user's message for one question."""
    return f"{question}\n{INSTRUCTION}"


def split_answer(answer: str, where: str = "answer") -> tuple[str, str]:
    """(reasoning, gold number in one spelling) of an answer in GSM8K's format, `reasoning #### number`."""
    reasoning, mark, tail = answer.rpartition(MARK)
    number = tail.strip().removeprefix("$").removesuffix(".")
    if not mark or not _NUMBER.fullmatch(number):
        what, fix = f"the answer has no number behind {MARK}: {answer[-60:]!r}", f"end it with {MARK} and a number"
        raise RecipeError(what, where=where, fix=fix)
    return reasoning.strip(), canonical(number)


def canonical(number: str) -> str:
    """A decimal number in one spelling: `1,234.50` as `1234.5`, `-0` as `0`."""
    value = Decimal(number.replace(",", ""))
    return format(value.normalize() if value else Decimal(0), "f")


def gold_response(reasoning: str, gold: str) -> str:
    """A response that earns full marks: the reasoning, and on the last line `#### number`."""
    return f"{reasoning}\n{MARK} {gold}"


Calculate = Callable[[str], str | None]
"""A calculator: expression -> result as a text; None where it is none that it knows."""


def with_calls(reasoning: str, gold: str, calculate: Calculate) -> list[dict[str, str]]:
    """A worked answer as messages in which the model calls a calculator where GSM8K has an annotation.

    Of `48/2 = <<48/2=24>>24 clips` the model writes `48/2 = <<48/2>>`, the tool `24`, and the model `24 clips`. What
    the calculator does not confirm (two with `//` of 23,716 are no expressions of its) becomes plain text.
    """
    messages, text, begin = list[dict[str, str]](), "", 0
    for found in _CALL.finditer(reasoning):
        text, begin = text + reasoning[begin : found.start()], found.end()
        result = calculate(found[1])
        if result is not None and canonical(result) == canonical(found[2]):
            messages += [{"role": "assistant", "content": f"{text}<<{found[1]}>>"}, {"role": "tool", "content": result}]
            text = ""
    return [*messages, {"role": "assistant", "content": gold_response(text + reasoning[begin:], gold)}]


def rows(questions: Iterable[Question | WordProblem], split: str, calculate: Calculate | None = None) -> Iterator[Row]:
    """One row for each question; the ground truth is the gold number.

    `extra_info.solution` is the worked answer as a model should write it: without the annotations for a calculator,
    or as messages that call one. Raises RecipeError for an empty question, and for an answer without a number.
    """
    for index, item in enumerate(questions):
        for name in ("question", "answer"):
            text = getattr(item, name)
            if not isinstance(text, str) or not text.strip():
                fix = f"give each row texts: a question, and an answer that ends with {MARK} and a number"
                raise RecipeError(f"the row has no {name}", where=item.where, fix=fix)
        reasoning, gold = split_answer(item.answer, item.where)
        question, plain = item.question.strip(), _ANNOTATION.sub("", reasoning)
        yield make_row(
            data_source=DATA_SOURCE,
            prompt=prompt(question),
            ground_truth=gold,
            ability=ABILITY,
            extra_info={
                "split": split,
                "index": index,
                "question": question,
                "solution": with_calls(reasoning, gold, calculate) if calculate else gold_response(plain, gold),
                "num_steps": len(_ANNOTATION.findall(reasoning)),  # a rough difficulty
            },
        )


REPOSITORY = "openai/gsm8k"
PUBLISHED = {"train": 7473, "test": 1319}
"""Rows of the data set as published; a source with other counts is incomplete."""


def published(folder: Path | None, revision: str, calculate: Calculate | None = None) -> Iterator[Split]:
    """Splits of the data set from the hub, or from `train.jsonl` and `test.jsonl` in a folder, for `prepare`."""
    columns = ("question", "answer")
    for split in PUBLISHED:
        files = None if folder is None else [folder / f"{split}.jsonl"]
        table, source = load_table(REPOSITORY, columns, name="main", split=split, revision=revision, files=files)
        texts = zip(table["question"].to_pylist(), table["answer"].to_pylist(), strict=True)
        questions = [Question(*both, f"{source}, {split} row {index}") for index, both in enumerate(texts)]
        yield Split(split, rows(questions, split, calculate), {"source": source}, len(questions))


SIZES = {"train": 2048, "test": 256}


def generated(sizes: Mapping[str, int] = SIZES, *, seed: int, calculate: Calculate | None = None) -> Iterator[Split]:
    """Splits of generated word problems, for `prepare`; train and test share no calculation."""
    for split, size in sizes.items():
        questions = islice(word_problems((split,), seed=seed), size)
        facts = {"source": "generated by recipes.tasks.gsm8k.problems", "seed": seed, "settings": {"size": size}}
        yield Split(split, rows(questions, split, calculate), facts, size)


def counted_by(row: Row) -> dict[str, int]:
    """The values by which the manifest counts rows."""
    return {"num_steps": row["extra_info"]["num_steps"]}
