"""Synthetic completions of Countdown and GSM8K in the proportions of a run's middle: right, wrong, cut short."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator

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


def _text(length: int, line: Callable[[], str]) -> str:
    """About `length` characters of lines."""
    lines: list[str] = []
    size = 0
    while size < length:
        lines.append(line())
        size += len(lines[-1]) + 1
    return "\n".join(lines)


def reasoning(rng: random.Random, numbers: list[int], length: int) -> str:
    """About `length` characters of attempts, one per line."""

    def attempt() -> str:
        text, value = expression(rng, rng.sample(numbers, rng.randint(2, len(numbers))))
        return f"{rng.choice(_WORDS)} {text} = {value}, {rng.choice(_WORDS)}."

    return _text(length, attempt)


# share, and the answer block made from (rng, solution, numbers, target); None is a response that was cut short
_Make = Callable[[random.Random, str, list[int], int], "str | None"]
_ANSWERS: tuple[tuple[float, _Make], ...] = (
    (0.38, lambda rng, solution, numbers, target: solution),
    (0.27, lambda rng, solution, numbers, target: expression(rng, rng.sample(numbers, len(numbers)))[0]),
    (0.12, lambda rng, solution, numbers, target: expression(rng, rng.sample(numbers, len(numbers) - 1))[0]),
    (0.05, lambda rng, solution, numbers, target: f"{solution} = {target}"),
    (0.03, lambda rng, solution, numbers, target: solution.replace("*", "×").replace("-", "−")),
    (0.03, lambda rng, solution, numbers, target: f"\n{solution}\n"),
    (0.02, lambda rng, solution, numbers, target: str(target)),
    (0.02, lambda rng, solution, numbers, target: f"The answer is {solution}"),
    (0.02, lambda rng, solution, numbers, target: solution + ")"),
    (0.01, lambda rng, solution, numbers, target: f"{numbers[0]} / ({numbers[1]} - {numbers[1]})"),
    (0.05, lambda rng, solution, numbers, target: None),
)


def countdown(count: int, seed: int = 0, group: int = 16) -> Iterator[tuple[str, str, str]]:
    """`count` triples (prompt, response, ground truth as JSON), `group` responses per problem as GRPO samples them.

    Reasoning takes 300 to 1,500 characters.
    """
    rng = random.Random(seed)
    shares, makers = zip(*_ANSWERS, strict=True)
    for index in range(count):
        if index % group == 0:
            numbers = [rng.randint(1, 99) for _ in range(rng.choice((3, 4)))]
            solution, target = expression(rng, numbers)
            prompt = PROMPT.format(target=target, numbers=numbers)
            truth = json.dumps({"target": target, "numbers": rng.sample(numbers, len(numbers))})
        thought = reasoning(rng, numbers, rng.randint(300, 1500))
        answer = rng.choices(makers, shares)[0](rng, solution, numbers, target)
        response = f"<think>{thought}"
        if answer is not None:
            response += f"</think>\n<answer>{answer}</answer>"
        yield prompt, response, truth


_NAMES = ("Mia", "Tom", "the baker", "Ana", "each child")
_THINGS = ("apples", "dollars", "miles", "pages", "eggs", "hours")

# share, and the end of the response made from (rng, the number stated)
_End = Callable[[random.Random, int], str]
_ENDINGS: tuple[tuple[float, _End], ...] = (
    (0.80, lambda rng, number: f"#### {number}"),
    (0.03, lambda rng, number: f"#### {number:,}"),
    (0.02, lambda rng, number: f"#### ${number}"),
    (0.02, lambda rng, number: f"#### {number} {rng.choice(_THINGS)}"),
    (0.01, lambda rng, number: f"#### {number}."),
    (0.04, lambda rng, number: f"The answer is $\\boxed{{{number}}}$."),
    (0.01, lambda rng, number: f"<answer>{number}</answer>"),
    (0.03, lambda rng, number: f"So the answer is {number} {rng.choice(_THINGS)}."),
    (0.04, lambda rng, number: f"Then {rng.choice(_NAMES)} would need"),
)


def working(rng: random.Random, length: int) -> str:
    """About `length` characters of working, one step per line."""

    def step() -> str:
        a, b = rng.randint(2, 90), rng.randint(2, 30)
        op, value = rng.choice((("+", a + b), ("*", a * b)))
        name, thing, day = rng.choice(_NAMES), rng.choice(_THINGS), rng.randint(1, 9)
        return f"{name} has {a} {op} {b} = {value} {thing} on day {day}."

    return _text(length, step)


def gsm8k(count: int, seed: int = 0, group: int = 16) -> Iterator[tuple[str, str]]:
    """`count` pairs (response, gold number), `group` responses per question as GRPO samples them.

    Half of the responses state the gold number; the working takes 200 to 1,000 characters.
    """
    rng = random.Random(seed)
    shares, makers = zip(*_ENDINGS, strict=True)
    for index in range(count):
        if index % group == 0:
            gold = int(10 ** rng.uniform(0, 4))
        stated = gold if rng.random() < 0.5 else max(0, gold + rng.randint(-20, 20))
        ending = rng.choices(makers, shares)[0](rng, stated)
        yield f"{working(rng, rng.randint(200, 1000))}\n{ending}", str(gold)
