"""Countdown problems as rows, from the generator or from the hub's data set."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from recipes.tasks.countdown.generate import Problem
from recipes.tasks.countdown.prompt import ABILITY, DATA_SOURCE, gold_response, ground_truth, prompt
from recipes.tasks.rows import make_row


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
