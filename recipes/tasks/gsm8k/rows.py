"""GSM8K's questions as rows, from the hub, from the original JSON lines, or from the generator."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from recipes.errors import RecipeError
from recipes.tasks.gsm8k.prompt import ABILITY, DATA_SOURCE, count_steps, gold_response, prompt, split_answer
from recipes.tasks.hub import load_hub_table
from recipes.tasks.rows import make_row, sha256

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
    found = zip(table["question"].to_pylist(), table["answer"].to_pylist(), strict=True)
    return [Question(*both, f"{source}, {split} row {index}") for index, both in enumerate(found)], source


def from_folder(folder: Path, split: str) -> tuple[list[Question], str]:
    """The questions of `<folder>/<split>.jsonl`, one JSON object with `question` and `answer` on each line."""
    path = folder / f"{split}.jsonl"
    if not path.is_file():
        raise RecipeError(
            f"there is no {path}", where="--source", fix="name a folder that holds train.jsonl and test.jsonl"
        )
    with path.open(encoding="utf-8") as lines:
        found = [_parsed(line, f"{path}, line {number}") for number, line in enumerate(lines, 1) if line.strip()]
    return found, f"{path.name}, SHA-256 {sha256(path)}"


def _parsed(line: str, where: str) -> Question:
    example = 'each line is {"question": "...", "answer": "... #### 72"}'
    try:
        record = json.loads(line)
    except ValueError as error:
        raise RecipeError(f"the line is not JSON: {error}", where=where, fix=example) from error
    fields = [record.get(name) if isinstance(record, dict) else None for name in ("question", "answer")]
    for name, value in zip(("question", "answer"), fields, strict=True):
        if not isinstance(value, str) or not value.strip():
            raise RecipeError(f"the line has no {name}", where=where, fix=example)
    return Question(fields[0], fields[1], where)


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
