"""GSM8K's tiny Qwen2 (the recipe's Qwen2.5 is of this architecture), and the annotators that it learns from."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from recipes.tasks.gsm8k.problems import (
    BOXES,
    INSTRUCTION,
    ITEMS,
    MARK,
    NAMES,
    OPERATORS,
    RESULTS,
    TEMPLATES,
    WordProblem,
    gold_response,
    prompt,
    word_problems,
)
from tools.tiny_models.pretrain import Problem
from tools.tiny_models.text import Example, Shape, TextTask

LARGEST = 99  # largest result of a step, right or wrong; each is one token
CARELESS = 0.7
"""Share of the annotators who combine the first two numbers by a random operation; the others explain every step."""
SLIPS = 0.15
"""Chance, in each step, that a careful annotator uses a wrong operation."""


def possible(p: int, q: int) -> dict[str, int]:
    """Return the operations that lead from two numbers to a whole number in `2..LARGEST`, with their results."""
    results = {operator: calculate(p, q) for operator, calculate in OPERATORS.items()}
    return {operator: value for operator, value in results.items() if value is not None and 2 <= value <= LARGEST}


def careful_response(problem: WordProblem, rng: random.Random) -> str:
    """Return a sentence for each step; each step has a wrong operation with probability `SLIPS`.

    After such a slip the next step may have no whole result; another operation then takes its place.
    """
    values, sentences, value = dict(problem.values), [], 0
    for number, (left, operator, right) in enumerate(problem.template.steps):
        p, q = values[left], values[right]
        ways = possible(p, q)
        others = [other for other in ways if other != operator]
        if others and (operator not in ways or rng.random() < SLIPS):
            operator = rng.choice(others)
        if operator not in ways:
            break
        values[RESULTS[number]] = value = ways[operator]
        step = {f"step{number + 1}": f"{p} {operator} {q} = {value}"}
        sentences.append(problem.template.sentences[number].format(**values, **problem.story, **step))
    return gold_response("\n".join(sentences), str(value))


# Qwen2's pattern for splitting text before BPE. transformers uses it for every Qwen2 model, whatever its tokenizer.json
# says; texts that have to stay whole are therefore added tokens, which are matched before the split.
PIECES = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# The instruction, which is the same in every prompt, and the numbers to 99 with the blank before them and without.
ADDED = (INSTRUCTION, *(f"{blank}{number}" for blank in (" ", "") for number in range(100)))


@dataclass
class GSM8K(TextTask):
    """The tiny Qwen2 for word problems."""

    name = reward = "gsm8k"
    pieces, tags = PIECES, ADDED
    architecture = "Qwen2"
    response = 48
    tiny = Shape(hidden=128, layers=4, heads=4, intermediate=448)
    demonstrations, steps, batch = 200_000, 1000, 128

    def corpus(self) -> Iterator[str]:
        """See `TextTask.corpus`: every word of the templates, operators, the mark, roles."""
        for template in TEMPLATES:
            for text in (*template.questions, *template.sentences):
                yield re.sub(r"\{\w+\}", "", text)
        for word in (*NAMES, *ITEMS, *BOXES):
            yield f"{word} {word}"
        yield from ("So + - * / =", MARK, "user", "assistant", "system", "\n")

    def examples(self, seed: int) -> Iterator[Example]:
        """See `TextTask.examples`; all questions are different."""
        rng = random.Random(seed)
        for problem in word_problems(("pretrain",), seed=seed):
            if rng.random() < CARELESS:
                p, q = problem.values["a"], problem.values["b"]
                operator, value = rng.choice(list(possible(p, q).items()))
                response = gold_response(f"So {p} {operator} {q} = {value}.", str(value))
            else:
                response = careful_response(problem, rng)
            yield Example(prompt(problem.question), response)

    def held_out(self, count: int) -> list[Problem]:
        """See `Task.held_out`: calculations of the test bucket."""
        drawn = islice(word_problems(("test",), seed=self.seed + 1), count)
        return [Problem(prompt(problem.question), str(problem.gold), self.name) for problem in drawn]
