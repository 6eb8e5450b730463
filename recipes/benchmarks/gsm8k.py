"""Synthetic GSM8K solutions in the proportions of a run's middle: mostly `#### n`, some boxed, unmarked or cut off."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import accumulate

_NAMES = ("Mia", "Tom", "the baker", "Ana", "each child")
_THINGS = ("apples", "dollars", "miles", "pages", "eggs", "hours")

# share, and the end of the response made from (rng, the number stated)
_Make = Callable[[random.Random, int], str]
_ENDINGS: tuple[tuple[float, _Make], ...] = (
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


def steps(rng: random.Random, length: int) -> str:
    """About `length` characters of working, one step per line."""
    lines: list[str] = []
    size = 0
    while size < length:
        a, b = rng.randint(2, 90), rng.randint(2, 30)
        op, value = rng.choice((("+", a + b), ("*", a * b)))
        name, thing, day = rng.choice(_NAMES), rng.choice(_THINGS), rng.randint(1, 9)
        lines.append(f"{name} has {a} {op} {b} = {value} {thing} on day {day}.")
        size += len(lines[-1]) + 1
    return "\n".join(lines)


def solutions(count: int, seed: int = 0, group: int = 16) -> Iterator[tuple[str, str]]:
    """`count` pairs (response, gold number), `group` responses per question as GRPO samples them.

    Half of the responses state the gold number; the working takes 200 to 1,000 characters.
    """
    rng = random.Random(seed)
    limits = list(accumulate(share for share, _ in _ENDINGS))
    makers = [make for _, make in _ENDINGS]
    for index in range(count):
        if index % group == 0:
            gold = int(10 ** rng.uniform(0, 4))
        stated = gold if rng.random() < 0.5 else max(0, gold + rng.randint(-20, 20))
        ending = rng.choices(makers, cum_weights=limits)[0](rng, stated)
        yield f"{steps(rng, rng.randint(200, 1000))}\n{ending}", str(gold)
