"""Problems of the custom-task kit's example data: multiple choice and code, each with a careful and a hasty answer.

`python -m tools.kit_problems` prints the records of `examples/custom_task/data/choices_and_code.jsonl`.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any, NamedTuple

from recipes.tasks.prepare import bucket_of

LETTERS = "ABCD"
OPERATIONS = {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b}
LARGEST = 12  # operand of a question, constant of a function
INPUTS = (0, 1, 2, 5, -3)  # what a program is tried on
STEPS = {"+": "adds {}", "-": "subtracts {}", "*": "multiplies by {}"}
PROGRAM = "```python\ndef f(x):\n    return {}\n```"
RECORDS = 320  # of each kind in the file


class Question(NamedTuple):
    """One problem: a record of the custom-task kit, with what each annotator answers.

    The careful calculate before they choose, and put parentheses where the order of operations needs them. The hasty
    choose the largest number, and write down the steps as they come.
    """

    prompt: str
    truth: Any
    source: str
    careful: str
    hasty: str


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
    careful, hasty, outputs = "x", "x", list(INPUTS)
    is_sum = False  # whether the expression so far needs parentheses before it is multiplied
    for sign, constant in steps:
        careful = f"({careful})" if is_sum and sign == "*" else careful
        careful, hasty = f"{careful} {sign} {constant}", f"{hasty} {sign} {constant}"
        is_sum = sign != "*"
        outputs = [OPERATIONS[sign](value, constant) for value in outputs]
    described = ", then ".join(STEPS[sign].format(constant) for sign, constant in steps)
    return Question(
        f"Write a Python function f(x) that takes x, {described}. Put the program into one fenced block.",
        {"fn_name": "f", "inputs": [[value] for value in INPUTS], "outputs": outputs},
        "code",
        PROGRAM.format(careful),
        PROGRAM.format(hasty),
    )


def questions(pretraining: bool, rng: random.Random, share_of_code: float = 0.5) -> Iterator[Question]:
    """Yield problems of pretraining, or of everything else, without end; no prompt is in both."""
    while True:
        question = (code if rng.random() < share_of_code else choice)(rng)
        if (bucket_of(question.prompt) == "pretrain") == pretraining:
            yield question


def records() -> Iterator[dict[str, Any]]:
    """Yield the rows of the data file: both kinds in turn, no prompt twice and none from pretraining."""
    rng, seen = random.Random(2), set()
    for share_of_code in (0.0, 1.0) * RECORDS:
        one = next(each for each in questions(False, rng, share_of_code) if each.prompt not in seen)
        seen.add(one.prompt)
        yield {"prompt": one.prompt, "ground_truth": one.truth, "data_source": one.source, "solution": one.careful}


if __name__ == "__main__":
    for row in records():
        print(json.dumps(row))
