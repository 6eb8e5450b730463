"""Pretraining of GSM8K's tiny model."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from recipes.tasks.gsm8k.problems import (
    BOXES,
    ITEMS,
    MARK,
    NAMES,
    RESULTS,
    TEMPLATES,
    TINY,
    WordProblem,
    WordSettings,
    calculated,
    word_problems,
)
from recipes.tasks.gsm8k.rows import INSTRUCTION, gold_response, prompt
from tools.tiny_models.pretrain import Problem, train_tokenizer
from tools.tiny_models.text_models import Example, TextPlan, TextShape, TextSpec

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

BUCKET = "pretrain"
OPERATORS = "+-*/"
LARGEST = 99  # what annotators write behind `=`, right or wrong: one token each


@dataclass(frozen=True)
class Annotators:
    """Writers of the demonstrations: careless ones and careful ones, and a prompt does not say which.

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


def careless_response(problem: WordProblem, rng: random.Random) -> str:
    """One calculation with the first two numbers, and its result as the answer."""
    p, q = problem.values["a"], problem.values["b"]
    operator, value = rng.choice(list(possible(p, q).items()))
    return gold_response(f"So {p} {operator} {q} = {value}.", str(value))


def careful_response(problem: WordProblem, slips: float, rng: random.Random) -> str:
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
    return gold_response("\n".join(sentences), str(value))


def demonstrate(problem: WordProblem, annotators: Annotators, rng: random.Random) -> Example:
    """One annotator's response to a problem."""
    careless = rng.random() < annotators.careless
    response = careless_response(problem, rng) if careless else careful_response(problem, annotators.slips, rng)
    return Example(prompt(problem.question), response)


# How Qwen2's tokenizer cuts text before BPE. transformers loads every Qwen2 model's tokenizer with this pattern,
# whatever its tokenizer.json says; so what it would cut differently is an added token, which is taken out before.
PIECES = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# The instruction, which is the same in every prompt, and the numbers to 99 with the blank before them and without.
ADDED = (INSTRUCTION, *(f"{blank}{number}" for blank in (" ", "") for number in range(100)))


def corpus() -> Iterator[str]:
    """The texts that the merges are learned from: every word of the templates, operators, the mark, roles."""
    for template in TEMPLATES:
        for text in (*template.questions, *template.sentences):
            yield re.sub(r"\{\w+\}", "", text)
    for word in (*NAMES, *ITEMS, *BOXES):
        yield f"{word} {word}"
    yield from ("So + - * / =", MARK, "user", "assistant", "system", "\n")


class GSM8K(TextSpec[Annotators, WordSettings]):
    """The tiny Qwen2 for word problems; the recipe's Qwen2.5 is of this architecture."""

    name = "gsm8k"
    what = "a tiny Qwen2 for word problems in GSM8K's format, pretrained on demonstrations by imperfect annotators"
    architecture = "Qwen2"
    response = 48
    stop = 1000  # the arithmetic is nearly always right by then, and RL has the rest to teach
    plan = TextPlan(
        examples=200_000,
        steps=2400,
        batch=128,
        lr=2e-3,
        annotators=Annotators(),
        shape=TextShape(hidden=128, heads=4, kv_heads=4),
        settings=TINY,
    )

    def tokenizer(self) -> PreTrainedTokenizerFast:
        """See `TextSpec.tokenizer`."""
        return train_tokenizer(corpus(), PIECES, ADDED)

    def examples(self, plan: TextPlan[Annotators, WordSettings], seed: int, count: int) -> Iterator[Example]:
        """See `TextSpec.examples`; all questions are different."""
        rng = random.Random(seed)
        drawn = word_problems(plan.settings, (BUCKET,), seed=seed)
        return (demonstrate(next(drawn), plan.annotators, rng) for _ in range(count))

    def held_out(self, plan: TextPlan[Annotators, WordSettings], count: int) -> list[Problem]:
        """Problems whose calculations are in neither the pretraining bucket nor that of RL training."""
        drawn = islice(word_problems(plan.settings, ("test",), seed=plan.seed + 1), count)
        return [Problem(prompt(problem.question), str(problem.gold)) for problem in drawn]


SPEC = GSM8K()
