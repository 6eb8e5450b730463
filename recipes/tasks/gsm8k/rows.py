"""GSM8K's rows: prompt, gold number and gold response, and the splits with what their manifests count."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any

from recipes.data.manifests import Origin, SplitCounts
from recipes.data.prepare import Split, sorted_counts
from recipes.data.rows import make_row
from recipes.errors import RecipeError
from recipes.tasks.gsm8k.problems import MARK, PUBLISHED, Question, WordSettings, from_folder, from_hub, generate

DATA_SOURCE = "gsm8k"
ABILITY = "math"

# One fixed sentence: a tiny tokenizer is trained on it, so a change here asks for a new tiny model.
INSTRUCTION = "Reason step by step, then end with a line that holds #### and the answer as a number."

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


@dataclass
class SplitSource:
    """The questions of a split, how many there will be, and what the manifest says of where they come from."""

    questions: Iterable[Question]
    size: int
    origin: Origin


@dataclass
class Tally:
    """Questions of a split, to find repeated ones, and their numbers of calculations."""

    questions: set[str] = field(default_factory=set)
    steps: Counter[int] = field(default_factory=Counter)

    def over(self, passing: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Hand rows on and count them.

        Raises:
            RecipeError: a question that was there before.
        """
        for row in passing:
            info = row["extra_info"]
            if info["question"] in self.questions:
                raise RecipeError(
                    f"{info['split']} row {info['index']} repeats a question: {info['question'][:80]!r}",
                    where="the data's source",
                    fix="remove one of the two",
                )
            self.questions.add(info["question"])
            self.steps[info["num_steps"]] += 1
            yield row


def published(folder: Path | None, revision: str) -> dict[str, SplitSource]:
    """The data set from the hub, or from `train.jsonl` and `test.jsonl` in a folder."""
    sources = {}
    for split in PUBLISHED:
        questions, name = from_hub(split, revision) if folder is None else from_folder(folder, split)
        sources[split] = SplitSource(questions, len(questions), Origin(source=name, published_rows=PUBLISHED[split]))
    return sources


def generated(settings: WordSettings, *, seed: int) -> dict[str, SplitSource]:
    """Generated word problems; train and test share no calculation."""
    sizes = {
        "train": (settings.train_size, settings.train_buckets),
        "test": (settings.test_size, settings.test_buckets),
    }
    origin = Origin(source="generated by recipes.tasks.gsm8k.problems", seed=seed, settings=asdict(settings))
    return {
        split: SplitSource(islice(generate(settings, buckets, seed=seed), size), size, replace(origin, buckets=buckets))
        for split, (size, buckets) in sizes.items()
    }


def splits(sources: dict[str, SplitSource]) -> Iterator[Split]:
    """The splits for `prepare`; no question is there twice, in one split or in two."""
    questions: set[str] = set()
    for split, source in sources.items():
        tally = Tally(questions)

        def counts(tally: Tally = tally) -> SplitCounts:
            return SplitCounts(counts={"num_steps": sorted_counts(tally.steps)})

        yield Split(split, tally.over(rows(source.questions, split)), source.size, source.origin, counts)
