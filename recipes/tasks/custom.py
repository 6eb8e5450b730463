"""The kit's example data: records of several data sources, and some that the tiny model understands.

`python -m recipes.tasks.custom` writes the files of examples/custom_task/data.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from fractions import Fraction
from itertools import permutations, product
from pathlib import Path
from typing import Any

from recipes.paths import ROOT
from recipes.tasks.countdown.data import gold_response, prompt

FOLDER = ROOT / "examples" / "custom_task" / "data"
SEED = 0
EMBEDDED = 160

_PEOPLE = ("Ana", "Bo", "Chen", "Dana", "Emil", "Fatma", "Gita", "Hana")
_THINGS = ("apples", "stamps", "marbles", "books", "shells", "cards")
_CAPITALS = {
    "Austria": ["Vienna", "Wien"],
    "Brazil": "Brasília",
    "Canada": "Ottawa",
    "Chile": ["Santiago", "Santiago de Chile"],
    "China": ["Beijing", "北京"],
    "Denmark": ["Copenhagen", "København"],
    "Egypt": "Cairo",
    "Finland": "Helsinki",
    "Greece": "Athens",
    "India": "New Delhi",
    "Italy": ["Rome", "Roma"],
    "Japan": "Tokyo",
    "Kenya": "Nairobi",
    "Mongolia": ["Ulaanbaatar", "Ulan Bator"],
    "Norway": "Oslo",
    "Peru": "Lima",
    "Poland": ["Warsaw", "Warszawa"],
    "Portugal": ["Lisbon", "Lisboa"],
    "Spain": "Madrid",
    "Vietnam": "Hanoi",
}
_ELEMENTS = {
    "carbon": "C", "copper": "Cu", "gold": "Au", "helium": "He", "iron": "Fe", "lead": "Pb", "neon": "Ne",
    "oxygen": "O", "potassium": "K", "silver": "Ag", "sodium": "Na", "tin": "Sn", "tungsten": "W", "zinc": "Zn",
}  # fmt: skip
_CHINESE = {"中国的首都是哪座城市？": "北京", "日本的首都是哪座城市？": ["东京", "東京"], "水的化学式是什么？": "H2O"}
_CODE = (
    (
        "Write a program that reads a whole number from standard input and prints its square.",
        {"inputs": ["3\n", "-4\n", "0\n"], "outputs": ["9\n", "16\n", "0\n"]},
        "print(int(input()) ** 2)",
    ),
    (
        "Write a Python function `count_vowels(text)` that counts the letters a, e, i, o and u, in either case.",
        {"fn_name": "count_vowels", "inputs": [["hello"], ["SKY"], ["Aeiou"]], "outputs": [2, 0, 5]},
        "def count_vowels(text):\n    return sum(letter in 'aeiou' for letter in text.lower())",
    ),
    (
        "Write a Python function `is_palindrome(word)` that says whether a word reads the same backwards.",
        {"asserts": ["assert is_palindrome('level')", "assert not is_palindrome('levels')"]},
        "def is_palindrome(word):\n    return word == word[::-1]",
    ),
    (
        "Write a Python function `gcd(a, b)`, the greatest common divisor of two positive whole numbers.",
        {"asserts": ["assert gcd(12, 18) == 6", "assert gcd(7, 5) == 1", "assert gcd(4, 4) == 4"]},
        "def gcd(a, b):\n    while b:\n        a, b = b, a % b\n    return a",
    ),
)


def example() -> list[dict[str, Any]]:
    """Records of six data sources, no prompt twice, in mixed order."""
    rng = random.Random(SEED)
    found = [*_distinct(_sums(rng), 90), *_distinct(_shopping(rng), 60), *_distinct(_fractions(rng), 50)]
    found += [*_distinct(_signs(rng), 50), *_facts()]
    rng.shuffle(found)
    return found


def code() -> list[dict[str, Any]]:
    """Programs with the three forms of tests, each with a response that passes them."""
    return [
        _record("code", f"{task} Put the program into one fenced block.", truth, f"```python\n{program}\n```")
        for task, truth, program in _CODE
    ]


def embedded() -> list[dict[str, Any]]:
    """Problems in the tiny model's words, under two data sources, each solved by some of its answers and not by all."""
    rng = random.Random(SEED)
    found: dict[str, dict[str, Any]] = {}
    while len(found) < EMBEDDED:
        numbers = [rng.randint(1, 9) for _ in range(3)]
        target = rng.randint(5, 40)
        known = _ways(numbers, target)
        question = prompt(numbers, target)
        if not known or question in found:
            continue
        source = ("math", "classification")[len(found) % 2]
        truth = target if source == "math" else known
        found[question] = _record(source, question, truth, gold_response(known[0]))
    return list(found.values())


def _ways(numbers: list[int], target: int) -> list[str]:
    """Every way to write the target with three numbers, as the tiny model writes."""
    operations = {"+": Fraction.__add__, "-": Fraction.__sub__, "*": Fraction.__mul__, "/": Fraction.__truediv__}
    found = set()
    for a, b, c in permutations(numbers):
        for (inner, first), (outer, second) in product(operations.items(), repeat=2):
            value = second(first(Fraction(a), Fraction(b)), Fraction(c))
            if value == target:
                weak = inner in "+-" and outer in "*/"
                found.add(f"({a} {inner} {b}) {outer} {c}" if weak else f"{a} {inner} {b} {outer} {c}")
    return sorted(found)


def _record(source: str, question: str, truth: Any, solution: str | None = None) -> dict[str, Any]:
    record = {"prompt": question, "ground_truth": truth, "data_source": source}
    return record if solution is None else {**record, "solution": solution}


def _distinct(records: Iterator[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    while len(found) < count:
        record = next(records)
        found.setdefault(record["prompt"], record)
    return list(found.values())


def _sums(rng: random.Random) -> Iterator[dict[str, Any]]:
    while True:
        a, b, c = rng.randint(11, 99), rng.randint(11, 99), rng.randint(2, 9)
        text, value = rng.choice(((f"{a} + {b} * {c}", a + b * c), (f"({a} - {b}) * {c}", (a - b) * c)))
        yield _record("math_reasoning", f"What is {text}? Write the result in \\boxed{{}}.", value)


def _shopping(rng: random.Random) -> Iterator[dict[str, Any]]:
    while True:
        name, other = rng.sample(_PEOPLE, 2)
        thing, have, times, gave = rng.choice(_THINGS), rng.randint(3, 20), rng.randint(2, 4), rng.randint(1, 5)
        question = (
            f"{name} has {have} {thing}. {other} has {times} times as many and gives {gave} of them away. "
            "How many do the two have now? End with #### and the number."
        )
        yield _record("gsm8k", question, str(have + have * times - gave))


def _fractions(rng: random.Random) -> Iterator[dict[str, Any]]:
    while True:
        a, b = (Fraction(rng.randint(1, 9), rng.randint(2, 9)) for _ in range(2))
        total = a + b
        truth = f"\\frac{{{total.numerator}}}{{{total.denominator}}}" if total.denominator > 1 else str(total)
        left, right = (f"\\frac{{{part.numerator}}}{{{part.denominator}}}" for part in (a, b))
        yield _record("math", f"Compute ${left} + {right}$. Write the result in \\boxed{{}}.", truth)


def _signs(rng: random.Random) -> Iterator[dict[str, Any]]:
    while True:
        a, b = rng.randint(100, 999), rng.randint(100, 999)
        label = "larger" if a > b else "smaller" if a < b else "equal"
        question = f"Is {a} larger than, smaller than, or equal to {b}? Answer with larger, smaller or equal."
        yield _record("classification", question, label)


def _facts() -> list[dict[str, Any]]:
    capitals = [_record("qa", f"What is the capital of {land}?", city) for land, city in _CAPITALS.items()]
    chinese = [_record("qa", question, answer) for question, answer in _CHINESE.items()]
    symbols = [_record("trivia", f"Which chemical symbol has {name}?", sign) for name, sign in _ELEMENTS.items()]
    return [*capitals, *chinese, *symbols]


def text(records: list[dict[str, Any]]) -> str:
    """JSON lines."""
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


FILES = {"example.jsonl": example, "code.jsonl": code, "embedded.jsonl": embedded}


def main(folder: Path = FOLDER) -> None:
    """Write every file."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, make in FILES.items():
        (folder / name).write_text(text(make()), encoding="utf-8")


if __name__ == "__main__":
    main()
