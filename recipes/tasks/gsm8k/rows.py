"""GSM8K's rows: prompt, gold number and gold response, and the splits with what their manifests count."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from itertools import islice
from pathlib import Path

from recipes.data.rows import Row, Split, make_row
from recipes.errors import RecipeError
from recipes.tasks.gsm8k.problems import MARK, Question, generate
from recipes.tasks.prepare import load_table

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
    """(reasoning, gold number) of an answer in GSM8K's format, `reasoning #### number`; `where` is for the error.

    The number is normalised: no thousands separators, leading zeros, trailing decimal zeros, `$` or full stop.

    Raises:
        RecipeError: there is no `####`, or no number behind it.
    """
    reasoning, mark, tail = answer.rpartition(MARK)
    number = tail.strip().removeprefix("$").removesuffix(".")
    if not mark or not _NUMBER.fullmatch(number):
        raise RecipeError(
            f"the answer has no number behind {MARK}: {answer[-60:]!r}",
            where=where,
            fix=f"end the answer with {MARK} and a number",
        )
    return reasoning.strip(), canonical(number)


def canonical(number: str) -> str:
    """A decimal number in one spelling: `1,234.50` as `1234.5`, `-0` as `0`."""
    value = Decimal(number.replace(",", ""))
    return format(value.normalize() if value else Decimal(0), "f")


def gold_response(reasoning: str, gold: str) -> str:
    """A response that earns full marks: the reasoning, and on the last line `#### number`."""
    return f"{reasoning}\n{MARK} {gold}"


def count_steps(answer: str) -> int:
    """Calculations of a worked answer, by its `<<48/2=24>>` annotations: a rough difficulty; 0 where it has none."""
    return len(_ANNOTATION.findall(answer))


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


def rows(questions: Iterable[Question], split: str, calculate: Calculate | None = None) -> Iterator[Row]:
    """One row for each question; the ground truth is the normalised gold number.

    `extra_info.solution` is the worked answer as a model should write it: without the annotations for a calculator,
    or as messages that call one.

    Raises:
        RecipeError: a question or an answer is no text, or is empty; or an answer has no number.
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
                "num_steps": count_steps(reasoning),
            },
        )


REPOSITORY = "openai/gsm8k"
PUBLISHED = {"train": 7473, "test": 1319}
"""Rows of the data set as published; a source with other counts is incomplete."""


def published(folder: Path | None, revision: str, calculate: Calculate | None = None) -> Iterator[Split]:
    """Splits of the data set from the hub, or from `train.jsonl` and `test.jsonl` in a folder, for `prepare`."""
    for split in PUBLISHED:
        files = None if folder is None else [folder / f"{split}.jsonl"]
        table, source = load_table(
            REPOSITORY, ("question", "answer"), name="main", split=split, revision=revision, files=files
        )
        texts = zip(table["question"].to_pylist(), table["answer"].to_pylist(), strict=True)
        questions = [Question(*both, f"{source}, {split} row {index}") for index, both in enumerate(texts)]
        yield Split(split, rows(questions, split, calculate), {"source": source}, len(questions))


SIZES = {"train": 2048, "test": 256}


def generated(sizes: Mapping[str, int] = SIZES, *, seed: int, calculate: Calculate | None = None) -> Iterator[Split]:
    """Splits of generated word problems, for `prepare`; train and test share no calculation."""
    for split, size in sizes.items():
        questions = islice(generate((split,), seed=seed), size)
        facts = {"source": "generated by recipes.tasks.gsm8k.problems", "seed": seed, "settings": {"size": size}}
        yield Split(split, rows(questions, split, calculate), facts, size)


def counted_by(row: Row) -> dict[str, int]:
    """Return the values by which the manifest counts rows."""
    return {"num_steps": row["extra_info"]["num_steps"]}
