"""Synthetic Countdown completions in the proportions of a run's middle: right, wrong, malformed and cut short."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from itertools import accumulate

PROMPT = "User: Make {target} from {numbers}, each exactly once.\nAssistant: Let me solve this step by step.\n"

_WORDS = ("try", "maybe", "that is too big", "too small", "close", "what about", "so", "then", "wait", "not equal to")


def expression(rng: random.Random, numbers: list[int]) -> tuple[str, int]:
    """A random +, -, * expression over the numbers in the order given, with its value."""
    text, value = str(numbers[0]), numbers[0]
    for number in numbers[1:]:
        op = rng.choice("+-*")
        if op == "*" and not text.isdigit():
            text = f"({text})"
        text = f"{text} {op} {number}"
        value = value * number if op == "*" else value + number if op == "+" else value - number
    return text, value


def reasoning(rng: random.Random, numbers: list[int], length: int) -> str:
    """About `length` characters of attempts, one per line."""
    lines: list[str] = []
    size = 0
    while size < length:
        text, value = expression(rng, rng.sample(numbers, rng.randint(2, len(numbers))))
        lines.append(f"{rng.choice(_WORDS)} {text} = {value}, {rng.choice(_WORDS)}.")
        size += len(lines[-1]) + 1
    return "\n".join(lines)


def _pretty(solution: str) -> str:
    return solution.replace("*", "×").replace("-", "−")


# share, and the answer block made from (rng, solution, numbers, target); None is a response that was cut short
_Make = Callable[[random.Random, str, list[int], int], "str | None"]
_ANSWERS: tuple[tuple[float, _Make], ...] = (
    (0.38, lambda rng, solution, numbers, target: solution),
    (0.27, lambda rng, solution, numbers, target: expression(rng, rng.sample(numbers, len(numbers)))[0]),
    (0.12, lambda rng, solution, numbers, target: expression(rng, rng.sample(numbers, len(numbers) - 1))[0]),
    (0.05, lambda rng, solution, numbers, target: f"{solution} = {target}"),
    (0.03, lambda rng, solution, numbers, target: _pretty(solution)),
    (0.03, lambda rng, solution, numbers, target: f"\n{solution}\n"),
    (0.02, lambda rng, solution, numbers, target: str(target)),
    (0.02, lambda rng, solution, numbers, target: f"The answer is {solution}"),
    (0.02, lambda rng, solution, numbers, target: solution + ")"),
    (0.01, lambda rng, solution, numbers, target: f"{numbers[0]} / ({numbers[1]} - {numbers[1]})"),
    (0.05, lambda rng, solution, numbers, target: None),
)


def completions(count: int, seed: int = 0, group: int = 16) -> Iterator[tuple[str, str, str]]:
    """`count` triples (prompt, response, ground truth as JSON), `group` responses per problem as GRPO samples them.

    Reasoning takes 300 to 1,500 characters.
    """
    rng = random.Random(seed)
    limits = list(accumulate(share for share, _ in _ANSWERS))
    makers = [make for _, make in _ANSWERS]
    for index in range(count):
        if index % group == 0:
            numbers = [rng.randint(1, 99) for _ in range(rng.choice((3, 4)))]
            solution, target = expression(rng, numbers)
            prompt = PROMPT.format(target=target, numbers=numbers)
            truth = json.dumps({"target": target, "numbers": rng.sample(numbers, len(numbers))})
        thought = reasoning(rng, numbers, rng.randint(300, 1500))
        answer = rng.choices(makers, cum_weights=limits)[0](rng, solution, numbers, target)
        response = f"<think>{thought}"
        if answer is not None:
            response += f"</think>\n<answer>{answer}</answer>"
        yield prompt, response, truth
