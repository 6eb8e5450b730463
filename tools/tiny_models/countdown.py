"""Pretraining of Countdown's tiny model."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations_with_replacement, islice
from typing import TYPE_CHECKING

from recipes.tasks.countdown.problems import PRESETS, Settings, bucket, generate
from recipes.tasks.countdown.rows import gold_response, ground_truth, prompt
from tools.tiny_models.pretrain import Problem, train_tokenizer
from tools.tiny_models.text_models import Example, TextPlan, TextSpec

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

BUCKET = "pretrain"
LARGEST = 99  # what annotators write behind `=`: one token each


@dataclass(frozen=True)
class Annotators:
    """Writers of the demonstrations: hasty ones and patient ones, and a prompt does not say which.

    Attributes:
        hasty: share of the hasty, who write down one trial and answer with it, right or wrong. The patient go on until
            they have found a solution.
        known: chance that the first trial is a solution; otherwise it is a near miss.
        learned: the same for every later trial of the patient.
        misses: a near miss is one of so many wrong expressions nearest to the target, those tried before left out.
        trials: after so many trials the patient, too, answer with the last one.
    """

    hasty: float = 0.7
    known: float = 0.2
    learned: float = 0.5
    misses: int = 2
    trials: int = 4


@lru_cache(maxsize=1 << 16)
def expressions(numbers: tuple[int, int, int]) -> dict[str, int]:
    """Ways to combine three numbers over positive whole numbers, with their values in `1..LARGEST`.

    Whatever three numbers can make, they can make over positive whole numbers: (a - b) * c with a < b is no positive
    target, and a / b * c is a * c / b.
    """
    values: dict[str, int] = {}
    for last in range(3):
        first, second = (number for index, number in enumerate(numbers) if index != last)
        for inner, value, weak in _combine(str(first), first, str(second), second):
            for text, result, _ in _combine(inner, value, str(numbers[last]), numbers[last], weak):
                if result <= LARGEST:
                    values[text] = result
    return values


def _combine(left: str, x: int, right: str, y: int, weak: bool = False) -> Iterator[tuple[str, int, bool]]:
    """`x` and `y` under each operation: text, value, and whether it needs parentheses beside a stronger operator.

    `left` may be an expression, `weak` says that it is a sum or a difference; `right` is a number. Differences and
    quotients take the larger value first.
    """
    guarded = f"({left})" if weak else left
    yield f"{left} + {right}", x + y, True
    yield f"{guarded} * {right}", x * y, False
    if x > y:
        yield f"{left} - {right}", x - y, True
    elif y > x:
        yield f"{right} - {guarded}", y - x, True
    if x % y == 0:
        yield f"{guarded} / {right}", x // y, False
    elif y % x == 0:
        yield f"{right} / {left if left.isdigit() else f'({left})'}", y // x, False


def trials(values: dict[str, int], target: int, annotators: Annotators, rng: random.Random) -> list[str]:
    """The expressions that one annotator writes down, in order; the last one is the answer."""
    solutions = [text for text, value in values.items() if value == target]
    nearest = sorted((abs(value - target), text) for text, value in values.items() if value != target)
    written: list[str] = []
    for _ in range(1 if rng.random() < annotators.hasty else annotators.trials):
        if rng.random() < (annotators.learned if written else annotators.known) or not nearest:
            return [*written, rng.choice(solutions)]
        written.append(nearest.pop(rng.randrange(min(annotators.misses, len(nearest))))[1])
    return written


@lru_cache(maxsize=4)
def problems(settings: Settings) -> tuple[tuple[tuple[int, int, int], int], ...]:
    """Every solvable (numbers, target) within the settings' ranges whose numbers are in the pretraining bucket."""
    span = range(settings.min_number, settings.max_number + 1)
    multisets = (numbers for numbers in combinations_with_replacement(span, 3) if bucket(numbers) == BUCKET)
    return tuple(
        (numbers, target)
        for numbers in multisets
        for target in sorted(set(expressions(numbers).values()))
        if settings.min_target <= target <= settings.max_target
    )


def demonstrate(annotators: Annotators, settings: Settings, rng: random.Random) -> Example:
    """One problem, its numbers in random order, with one annotator's response."""
    multiset, target = rng.choice(problems(settings))
    numbers = tuple(rng.sample(multiset, 3))
    values = expressions(numbers)
    written = trials(values, target, annotators, rng)
    reasoning = "\n".join(f"{text} = {values[text]}" for text in written)
    return Example(prompt(numbers, target), gold_response(written[-1], reasoning))


# As the think tags are in Qwen3: no special tokens.
TAGS = ("<think>", "</think>", "<answer>", "</answer>")

# What is cut out before BPE: numbers (two digits at most), operators with their blanks, parentheses, line breaks. What
# lies between is one piece, blanks included, so that a whole clause of the fixed prompt becomes one token.
PIECES = r"[0-9]{1,2}| [-+*/=] |[()]|\n"


def corpus() -> Iterator[str]:
    """The texts that the merges are learned from: the prompt with every number from 1 to 99, roles, a calculation."""
    for number in range(1, 100):
        yield from re.split("|".join(TAGS), prompt([number] * 3, number))
    yield from ("user", "assistant", "system", "(1 + 2) * 3 - 4 / 5 = 2\n")


class Countdown(TextSpec[Annotators, Settings]):
    """Countdown's tiny Qwen3."""

    name = "countdown"
    what = "a tiny Qwen3 for Countdown, pretrained on demonstrations by imperfect annotators"
    architecture = "Qwen3"
    response = 64  # four trials and an answer take at most 60
    plan = TextPlan(examples=300_000, steps=2800, batch=512, lr=2e-3, annotators=Annotators(), settings=PRESETS["tiny"])

    def tokenizer(self) -> PreTrainedTokenizerFast:
        """See `TextSpec.tokenizer`."""
        return train_tokenizer(corpus(), PIECES, TAGS)

    def examples(self, plan: TextPlan[Annotators, Settings], seed: int, count: int) -> Iterator[Example]:
        """See `TextSpec.examples`."""
        rng = random.Random(seed)
        return (demonstrate(plan.annotators, plan.settings, rng) for _ in range(count))

    def held_out(self, plan: TextPlan[Annotators, Settings], count: int) -> list[Problem]:
        """Problems whose multisets of numbers are in neither the pretraining bucket nor that of RL training."""
        return [
            Problem(prompt(problem.numbers, problem.target), ground_truth(problem.numbers, problem.target))
            for problem in islice(generate(plan.settings, ("test",), seed=plan.seed + 1), count)
        ]


SPEC = Countdown()
