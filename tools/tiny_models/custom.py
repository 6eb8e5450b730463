"""Multiple choice and code for the custom-task kit: problems, and the pretraining of a tiny model that half knows them.

`python -m tools.tiny_models.custom` prints the records of `examples/custom_task/data/choices_and_code.jsonl`.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from recipes.data.rewards import load_reward
from recipes.data.splits import bucket_of
from recipes.paths import ROOT
from tools.tiny_models.pretrain import Problem, train_tokenizer
from tools.tiny_models.text_models import Example, TextPlan, TextShape, TextSpec

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

LETTERS = "ABCD"
OPERATIONS = {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b}
LARGEST = 12  # operand of a question, constant of a function
INPUTS = (0, 1, 2, 5, -3)  # what a program is tried on
STEPS = {"+": "adds {}", "-": "subtracts {}", "*": "multiplies by {}"}
RECORDS = 320  # of each kind in the file


@dataclass(frozen=True)
class Annotators:
    """Writers of the demonstrations; a prompt does not say which.

    Attributes:
        careful: share of those who calculate before they choose, and put parentheses where the order of operations
            needs them. The hasty choose the largest number, and write down the steps as they come.
    """

    careful: float = 0.3


@dataclass(frozen=True)
class Settings:
    """Attributes: code: share of programming problems."""

    code: float = 0.5


@dataclass(frozen=True)
class Question:
    """One problem: a record of the custom-task kit, with what each annotator answers."""

    prompt: str
    truth: Any
    source: str
    careful: str
    hasty: str

    def record(self) -> dict[str, Any]:
        """A row of the data file."""
        return {
            "prompt": self.prompt,
            "ground_truth": self.truth,
            "data_source": self.source,
            "solution": self.careful,
        }


def choice(rng: random.Random) -> Question:
    """A calculation with four results to choose from."""
    sign = rng.choice(list(OPERATIONS))
    first, second = rng.randint(1, LARGEST), rng.randint(1, LARGEST)
    if sign == "-":
        first, second = max(first, second), min(first, second)
    result = OPERATIONS[sign](first, second)
    near = [value for value in range(max(0, result - 6), result + 7) if value != result]
    options = [*rng.sample(near, 3), result]
    rng.shuffle(options)
    right, largest = options.index(result), options.index(max(options))
    listed = "\n".join(f"{letter} {option}" for letter, option in zip(LETTERS, options, strict=True))
    calculation = f"{first} {sign} {second}"
    return Question(
        f"What is {calculation}?\n{listed}\nThink in <think> </think>, then write the letter in <answer> </answer>.",
        {"label": LETTERS[right], "labels": list(LETTERS)},
        "classification",
        f"<think>{calculation} = {result}</think>\n<answer>{LETTERS[right]}</answer>",
        f"<think>It looks right.</think>\n<answer>{LETTERS[largest]}</answer>",
    )


def code(rng: random.Random) -> Question:
    """A function of three steps, written without parentheses by the hasty."""
    steps = [(rng.choice("+-**"), rng.randint(2, LARGEST)) for _ in range(3)]
    careful, hasty = "x", "x"
    is_sum = False  # whether multiplying what stands there needs parentheses around it
    for sign, constant in steps:
        careful = f"({careful})" if is_sum and sign == "*" else careful
        careful, hasty = f"{careful} {sign} {constant}", f"{hasty} {sign} {constant}"
        is_sum = sign != "*"
    outputs = []
    for value in INPUTS:
        for sign, constant in steps:
            value = OPERATIONS[sign](value, constant)
        outputs.append(value)
    described = ", then ".join(STEPS[sign].format(constant) for sign, constant in steps)
    return Question(
        f"Write a Python function f(x) that takes x, {described}. Put the program into one fenced block.",
        {"fn_name": "f", "inputs": [[value] for value in INPUTS], "outputs": outputs},
        "code",
        program(careful),
        program(hasty),
    )


def program(expression: str) -> str:
    """Return a response that defines f."""
    return f"```python\ndef f(x):\n    return {expression}\n```"


def questions(settings: Settings, pretraining: bool, rng: random.Random) -> Iterator[Question]:
    """Endless problems of pretraining, or of everything else; no prompt is in both."""
    while True:
        question = (code if rng.random() < settings.code else choice)(rng)
        if (bucket_of(question.prompt) == "pretrain") == pretraining:
            yield question


def records() -> Iterator[dict[str, Any]]:
    """Rows of the data file: as many of each kind, in turn, none twice and none from pretraining."""
    rng, seen = random.Random(2), set()
    for settings in (Settings(code=0.0), Settings(code=1.0)) * RECORDS:
        question = next(each for each in questions(settings, False, rng) if each.prompt not in seen)
        seen.add(question.prompt)
        yield question.record()


# Numbers, signs with their blanks, brackets, letters to choose and line breaks; the clauses between are one token each.
PIECES = r"[0-9]{1,3}| [-+*=] |[()?.]|\n|\b[ABCD]\b"
TAGS = ("<think>", "</think>", "<answer>", "</answer>")


def corpus() -> Iterator[str]:
    """The texts that the merges are learned from: every number, and both kinds of problem."""
    rng = random.Random(0)
    for number in range(LARGEST * LARGEST + 7):
        yield f"{number}"
    for question in islice(questions(Settings(), True, rng), 400):
        for text in (question.prompt, question.careful, question.hasty):
            yield from re.split("|".join(TAGS), text)
    yield from ("user", "assistant", "system")


class Custom(TextSpec[Annotators, Settings]):
    """The tiny Qwen3 of the kit's multiple choice and code."""

    name = "custom"
    what = "a tiny Qwen3 for multiple choice and code, pretrained on demonstrations by careful and hasty annotators"
    architecture = "Qwen3"
    response = 48
    stop = 900
    plan = TextPlan(
        examples=60_000,
        steps=1500,
        batch=128,
        lr=2e-3,
        annotators=Annotators(),
        settings=Settings(),
        shape=TextShape(hidden=96, layers=3, heads=3, kv_heads=3, intermediate=256),
    )

    def tokenizer(self) -> PreTrainedTokenizerFast:
        """See `TextSpec.tokenizer`."""
        return train_tokenizer(corpus(), PIECES, TAGS)

    def examples(self, plan: TextPlan[Annotators, Settings], seed: int, count: int) -> Iterator[Example]:
        """See `TextSpec.examples`."""
        rng = random.Random(seed)
        for question in islice(questions(plan.settings, True, rng), count):
            careful = rng.random() < plan.annotators.careful
            yield Example(question.prompt, question.careful if careful else question.hasty)

    def held_out(self, plan: TextPlan[Annotators, Settings], count: int) -> list[Problem]:
        """Problems whose prompts are not in pretraining."""
        drawn = islice(questions(plan.settings, False, random.Random(plan.seed + 1)), count)
        return [Problem(question.prompt, json.dumps([question.source, question.truth])) for question in drawn]

    def reward(self) -> Callable[[str, Problem], dict[str, Any]]:
        """See `Spec.reward`; the kit's own rewards, by data source."""
        compute_score = load_reward(ROOT / "reward_functions" / "dispatch.py").compute_score

        def score(response: str, problem: Problem) -> dict[str, Any]:
            source, truth = json.loads(problem.truth)
            return compute_score(source, response, json.dumps(truth))

        return score


SPEC = Custom()

if __name__ == "__main__":
    for row in records():
        print(json.dumps(row))
