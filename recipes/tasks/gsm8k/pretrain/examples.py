"""Demonstrations by imperfect annotators: reasoning in GSM8K's format, answers that are right in a share."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from recipes.tasks.gsm8k.prompt import gold_response, prompt
from recipes.tasks.gsm8k.word_problems import RESULTS, WordProblem, WordSettings, calculated, word_problems
from recipes.tasks.pretrain.task import Example

BUCKET = "pretrain"
OPERATORS = "+-*/"
LARGEST = 99  # what annotators write behind `=`, right or wrong: one token each


@dataclass(frozen=True)
class Annotators:
    """Who wrote the demonstrations: careless annotators and careful ones, and nothing in a prompt tells which.

    Attributes:
        careless: share of the careless, who put the first two numbers together in some way, and that is their answer.
            The careful explain every step.
        slips: chance that a careful annotator takes another operation than the right one, in each step.
    """

    careless: float = 0.7
    slips: float = 0.15


def possible(p: int, q: int) -> dict[str, int]:
    """The operations that lead from two numbers to a whole number in `2..LARGEST`, with their results."""
    results = {operator: calculated(p, operator, q) for operator in OPERATORS}
    return {operator: value for operator, value in results.items() if value is not None and 2 <= value <= LARGEST}


def careless_response(problem: WordProblem, rng: random.Random) -> tuple[str, int]:
    """One calculation with the first two numbers: the response, and its answer."""
    p, q = problem.values["a"], problem.values["b"]
    operator, value = rng.choice(list(possible(p, q).items()))
    return gold_response(f"So {p} {operator} {q} = {value}.", str(value)), value


def careful_response(problem: WordProblem, slips: float, rng: random.Random) -> tuple[str, int]:
    """Every step in a sentence of its own, one of them with a wrong operation now and then.

    After such a slip the next step may have no whole result; another operation then takes its place.
    """
    values = dict(problem.values)
    sentences = []
    value = 0
    for number, (left, operator, right) in enumerate(problem.template.steps):
        p, q = values[left], values[right]
        ways = possible(p, q)
        others = {other: result for other, result in ways.items() if other != operator}
        if others and (operator not in ways or rng.random() < slips):
            operator, value = rng.choice(list(others.items()))
        elif operator in ways:
            value = ways[operator]
        else:
            break
        values[RESULTS[number]] = value
        step = {f"step{number + 1}": f"{p} {operator} {q} = {value}"}
        sentences.append(problem.template.sentences[number].format(**values, **problem.story, **step))
    return gold_response("\n".join(sentences), str(value)), value


def demonstrate(problem: WordProblem, annotators: Annotators, rng: random.Random) -> Example:
    """One annotator's response to a problem."""
    if rng.random() < annotators.careless:
        response, value = careless_response(problem, rng)
    else:
        response, value = careful_response(problem, annotators.slips, rng)
    return Example(prompt(problem.question), response, value == problem.gold)


def examples(annotators: Annotators, settings: WordSettings, seed: int, count: int) -> Iterator[Example]:
    """`count` demonstrations of different questions; the same seed gives the same ones."""
    rng = random.Random(seed)
    drawn = word_problems(settings, (BUCKET,), seed=seed)
    return (demonstrate(next(drawn), annotators, rng) for _ in range(count))
