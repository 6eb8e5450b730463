"""GSM8K's prompt, its gold number and its gold response, for the data set and for generated problems alike."""

from __future__ import annotations

import re
from decimal import Decimal

from recipes.errors import RecipeError

DATA_SOURCE = "gsm8k"
ABILITY = "math"

# One fixed sentence: a tiny tokenizer is trained on it, so a change here asks for a new tiny model.
INSTRUCTION = "Reason step by step, then end with a line that holds #### and the answer as a number."

MARK = "####"
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
