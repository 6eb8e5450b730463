"""The custom-task kit's tiny Qwen3, and the annotators that it learns from."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from tools.kit_problems import LARGEST, questions
from tools.tiny_models.pretrain import Problem
from tools.tiny_models.text import Example, Shape, TextTask

CAREFUL = 0.3
"""Share of the careful annotators; the others are hasty."""

# Numbers, signs with their blanks, brackets, option letters and line breaks; each clause between them is one token.
PIECES = r"[0-9]{1,3}| [-+*=] |[()?.]|\n|\b[ABCD]\b"
TAGS = ("<think>", "</think>", "<answer>", "</answer>")


@dataclass
class Custom(TextTask):
    """The tiny Qwen3 of the kit's multiple choice and code."""

    name = "custom"
    pieces, tags = PIECES, TAGS
    reward = "dispatch"
    architecture = "Qwen3"
    response = 48
    tiny = Shape(hidden=96, layers=3, heads=3, intermediate=256)
    demonstrations, steps, batch = 60_000, 900, 128

    def corpus(self) -> Iterator[str]:
        """See `TextTask.corpus`: every number, and both kinds of problem."""
        rng = random.Random(0)
        for number in range(LARGEST * LARGEST + 7):
            yield f"{number}"
        for question in islice(questions(True, rng), 400):
            for text in (question.prompt, question.careful, question.hasty):
                yield from re.split("|".join(TAGS), text)
        yield from ("user", "assistant", "system")

    def examples(self, seed: int) -> Iterator[Example]:
        """See `TextTask.examples`."""
        rng = random.Random(seed)
        for question in questions(True, rng):
            yield Example(question.prompt, question.careful if rng.random() < CAREFUL else question.hasty)

    def held_out(self, count: int) -> list[Problem]:
        """See `Task.held_out`: prompts that are not in pretraining."""
        drawn = islice(questions(False, random.Random(self.seed + 1)), count)
        return [Problem(each.prompt, json.dumps(each.truth), each.source) for each in drawn]
