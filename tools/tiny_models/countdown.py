"""Countdown's tiny Qwen3, and the annotators that it learns from."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from recipes.tasks.countdown import problems
from recipes.tasks.countdown.problems import PRESETS, bucket, generate, gold_response, ground_truth, prompt, text
from tools.tiny_models.pretrain import Problem
from tools.tiny_models.text import Example, Shape, TextTask

SETTINGS = PRESETS["tiny"]
LARGEST = 99  # largest number that annotators write behind `=`; each is one token
HASTY = 0.7
"""Share of the annotators who write down one trial and answer with it; the others go on for up to `TRIALS`."""
KNOWN, LEARNED = 0.2, 0.5
"""Chance that the first trial, and each later one, is a solution; otherwise one of the `MISSES` nearest misses."""
MISSES, TRIALS = 2, 4


def expressions(numbers: tuple[int, ...]) -> dict[str, int]:
    """Return an expression over the numbers for each whole value in `1..LARGEST`, with the value."""
    found = (
        (text(each), round(value)) for value, each in problems.expressions(numbers).items() if value == round(value)
    )
    return {written: value for written, value in found if 1 <= value <= LARGEST}


def trials(values: dict[str, int], target: int, rng: random.Random) -> list[str]:
    """Return the expressions that one annotator writes down, in order; the last one is the answer."""
    solutions = [each for each, value in values.items() if value == target]
    nearest = sorted((abs(value - target), each) for each, value in values.items() if value != target)
    written: list[str] = []
    for _ in range(1 if rng.random() < HASTY else TRIALS):
        if rng.random() < (LEARNED if written else KNOWN) or not nearest:
            return [*written, rng.choice(solutions)]
        written.append(nearest.pop(rng.randrange(min(MISSES, len(nearest))))[1])
    return written


# Added tokens that are not special, as the think tags are in Qwen3.
TAGS = ("<think>", "</think>", "<answer>", "</answer>")
# What is cut out before BPE: numbers (two digits at most), operators with their blanks, parentheses, line breaks. What
# lies between is one piece, blanks included, so that a whole clause of the fixed prompt becomes one token.
PIECES = r"[0-9]{1,2}| [-+*/=] |[()]|\n"


@dataclass
class Countdown(TextTask):
    """Countdown's tiny Qwen3."""

    name = reward = "countdown"
    pieces, tags = PIECES, TAGS
    architecture = "Qwen3"
    response = 64  # four trials and an answer take at most 60
    tiny = Shape(hidden=160, layers=4, heads=5, intermediate=448)
    demonstrations, steps, batch = 300_000, 2800, 512

    def corpus(self) -> Iterator[str]:
        """See `TextTask.corpus`: the prompt with every number from 1 to 99, roles, a calculation."""
        yield from ("user", "assistant", "system", "(1 + 2) * 3 - 4 / 5 = 2\n")
        for number in range(1, 100):
            yield from re.split("|".join(TAGS), prompt([number] * 3, number))

    def examples(self, seed: int) -> Iterator[Example]:
        """See `TextTask.examples`."""
        rng = random.Random(seed)
        while True:
            numbers = tuple(rng.randint(1, SETTINGS.max_number) for _ in range(3))
            values = expressions(numbers)
            targets = [value for value in values.values() if 1 <= value <= SETTINGS.max_target]
            if targets and bucket(numbers) == "pretrain":
                target = rng.choice(targets)
                written = trials(values, target, rng)
                reasoning = "\n".join(f"{each} = {values[each]}" for each in written)
                yield Example(prompt(numbers, target), gold_response(written[-1], reasoning))

    def held_out(self, count: int) -> list[Problem]:
        """See `Task.held_out`: multisets of numbers of the test bucket."""
        return [
            Problem(prompt(each.numbers, each.target), ground_truth(each.numbers, each.target), self.name)
            for each in islice(generate(SETTINGS, ("test",), seed=self.seed + 1), count)
        ]
