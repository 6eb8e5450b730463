"""GSM8K's prompt and rows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

from recipes.data.hub import load_hub_table
from recipes.data.rows import make_row
from recipes.errors import RecipeError
from recipes.provenance import sha256

DATA_SOURCE = "gsm8k"
ABILITY = "math"

# One fixed sentence: a tiny tokenizer is trained on it, so a change here asks for a new tiny model.
INSTRUCTION = "Reason step by step, then end with a line that holds #### and the answer as a number."

MARK = "####"
_ANNOTATION = re.compile(r"<<[^<>]*>>")
_NUMBER = re.compile(r"-?(?:\d+|\d{1,3}(?:,\d{3})+)(?:\.\d+)?")


def prompt(question: str) -> str:
    """The user's message for one question."""
    return f"{question}\n{INSTRUCTION}"


def split_answer(answer: str) -> tuple[str, str]:
    """(reasoning, gold number) of an answer in GSM8K's format, `reasoning #### number`.

    The number is written in one way: no thousands separators, no zeros at either end, no `$` and no full stop.

    Raises:
        RecipeError: there is no `####`, or no number behind it.
    """
    reasoning, mark, tail = answer.rpartition(MARK)
    number = tail.strip().removeprefix("$").removesuffix(".")
    if not mark or not _NUMBER.fullmatch(number):
        raise RecipeError(
            f"the answer has no number behind {MARK}: {answer[-60:]!r}",
            where="answer",
            fix=f"end the answer with {MARK} and a number",
        )
    return reasoning.strip(), canonical(number)


def canonical(number: str) -> str:
    """A decimal number in one spelling: `1,234.50` as `1234.5`, `-0` as `0`."""
    value = Decimal(number.replace(",", ""))
    return format(value.normalize() if value else Decimal(0), "f")


def gold_response(solution: str, gold: str) -> str:
    """A response that earns full marks: the solution, and on the last line `#### number`."""
    return f"{solution}\n{MARK} {gold}"


def count_steps(solution: str) -> int:
    """Calculations of a solution, by its `<<48/2=24>>` annotations: a rough difficulty; 0 where it has none."""
    return len(_ANNOTATION.findall(solution))


REPOSITORY = "openai/gsm8k"
# Rows of the data set as published; a source with other counts is not the whole of it.
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


def rows(questions: Iterable[Question], split: str) -> Iterator[dict[str, Any]]:
    """One row for each question; the ground truth is the normalised gold number."""
    for index, item in enumerate(questions):
        try:
            solution, gold = split_answer(item.answer)
        except RecipeError as error:
            raise RecipeError(error.what, where=item.where, fix=error.fix) from error
        question = item.question.strip()
        yield make_row(
            data_source=DATA_SOURCE,
            prompt=prompt(question),
            ground_truth=gold,
            ability=ABILITY,
            extra_info={
                "split": split,
                "index": index,
                "question": question,
                "solution": solution,
                "num_steps": count_steps(solution),
            },
        )


def row_gold_response(row: dict[str, Any]) -> str:
    """The response that a row's worked solution stands for."""
    return gold_response(row["extra_info"]["solution"], row["answer"])
