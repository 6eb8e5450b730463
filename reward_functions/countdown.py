"""Countdown's reward: an equation that uses each given number exactly once and makes the target, in exact arithmetic.

Score: 1.0 for a correct equation in the last `<answer>` block behind the thinking, whatever stands around it. Otherwise
0.1 for the format with an expression that has an operator, plus 0.1 for an expression that has a value and uses each
given number exactly once. docs/REWARD_COUNTDOWN.md has the rules and the reason codes, and explains them.

Standalone, standard library only: trainers load this file by its path in worker processes. The expression's characters
are checked first, then `ast` parses it, and only the four operations on whole numbers are evaluated.
"""

from __future__ import annotations

import ast
import json
import operator
import re
from functools import lru_cache
from typing import Any

REWARD_NAME = "countdown"  # EasyR1 prints this name
REWARD_TYPE = "batch"  # and calls `compute_score_batch` with a list

FORMAT_CREDIT = 0.1
NUMBERS_CREDIT = 0.1
REASONS = (
    "correct",
    "wrong_value",  # each number is used once, but the value is wrong
    "false_equation",  # the expression is right, but another side of the equation has another value
    "wrong_numbers",  # a number missing, repeated or foreign
    "target_copied",  # the target itself as the answer
    "division_by_zero",
    "forbidden_operator",  # ** // ^ % !
    "unparsable",  # not an arithmetic expression
    "too_long",  # longer than MAX_ANSWER characters
    "no_answer",  # no answer block, or an empty one
    "truncated",  # the response ends inside the thinking or inside the answer
    "gold_unparsable",  # the ground truth is broken: the row's fault, not the policy's
)
MAX_ANSWER = 1000  # characters
END_MARKS = ("", "<|im_end|>", "<|endoftext|>")  # may follow the answer, where decoding keeps special tokens

# Character normalisation: full-width forms and look-alike signs become ASCII.
SPELLINGS: dict[int, str] = {code: chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)} | {0xA0: " ", 0x3002: "."}
SPELLINGS |= {ord("{"): "[", ord("}"): "]"}
SPELLINGS |= dict.fromkeys(map(ord, "\u2212\u2010\u2011\u2013"), "-") | dict.fromkeys(map(ord, "÷∕⁄"), "/")
SPELLINGS |= dict.fromkeys(map(ord, "×✕✖⋅·∙•∗xX"), "*")
OPERATORS = {"\\times": "*", "\\cdot": "*", "\\div": "/"}  # LaTeX's; the other commands only place what follows
_COMMAND = re.compile(r"\\(?:times|cdot|div|left|right)(?![A-Za-z])|\$|\\[()]")
_FRACTION = re.compile(r"\\[dt]?frac *\{([^{}]*)\} *\{([^{}]*)\}")
_FORBIDDEN = re.compile(r"\* ?\*|/ ?/|[\^%!]").search
_ALLOWED = re.compile(r"[0-9+*/()\[\]= -]+").fullmatch
_LEADING_ZERO = re.compile(r"(?<![0-9])0[0-9]").search
_NUMBER = re.compile("[0-9]+")


class _Rejected(Exception):
    """The answer is no arithmetic expression; the argument is the reason code."""


def read_sides(answer: str) -> list[tuple[ast.expr, list[int]]]:
    """(expression, its numbers sorted) for each side of `A`, or of `A = B = ...`. Raises _Rejected."""
    text = answer.strip().removesuffix(".")
    if not _ALLOWED(text):
        text = _COMMAND.sub(lambda match: OPERATORS.get(match[0], ""), text)
        while (plain := _FRACTION.sub(r"((\1)/(\2))", text)) != text:  # the innermost fractions first
            text = plain
        text = " ".join(text.translate(SPELLINGS).split()).removesuffix(".")
    if _FORBIDDEN(text):
        raise _Rejected("forbidden_operator")
    if not _ALLOWED(text) or _LEADING_ZERO(text):
        raise _Rejected("unparsable")
    sides = [side.strip() for side in text.split("=")]
    try:
        return [(ast.parse(side, mode="eval").body, sorted(map(int, _NUMBER.findall(side)))) for side in sides]
    except (SyntaxError, RecursionError, MemoryError):
        raise _Rejected("unparsable") from None


def value(node: ast.expr) -> tuple[int, int]:
    """Return the exact value as (numerator, denominator); the denominator is 0 after a division by zero.

    Raises _Rejected for anything that is not arithmetic, such as `2(3)`."""
    if isinstance(node, ast.BinOp):
        (a, b), (c, d), kind = value(node.left), value(node.right), type(node.op)
        if kind is ast.Mult:
            return a * c, b * d
        if kind is ast.Div:
            return a * d, b * c if d else 0
        return (a * d + c * b if kind is ast.Add else a * d - c * b), b * d
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value, 1
    if isinstance(node, ast.UnaryOp):
        above, below = value(node.operand)
        return (-above if isinstance(node.op, ast.USub) else above), below
    if isinstance(node, ast.List) and len(node.elts) == 1:
        return value(node.elts[0])
    raise _Rejected("unparsable")


def find_answer(text: str) -> tuple[str, str, bool]:
    """Find the last `<answer>` block outside the thinking: (content, reason, format); content or reason is "".

    `format` is True where the response is reasoning, `</think>` and one answer block, with nothing after it; the
    opening `<think>` may be in the prompt, where some chat templates put it.
    """
    close = text.rfind("</think>")
    opened = text.find("<think>", close + 1)
    limit = len(text) if opened == -1 else opened
    start = text.rfind("<answer>", close + 1, limit)
    if start == -1:
        return "", "no_answer" if opened == -1 else "truncated", False
    end = text.find("</answer>", start, limit)
    if end == -1:
        return "", "truncated", False
    content = text[start + 8 : end].strip()
    formatted = text[end + 9 :].strip() in END_MARKS and _thought(text, close, start)
    return content, "" if content else "no_answer", formatted


def _thought(text: str, close: int, start: int) -> bool:
    """Return whether `text[:close]` is one block of reasoning, and the answer at `start` the only one behind it."""
    if close == -1 or text.find("</think>") != close or text.find("<answer>", close) != start:
        return False
    before, _, thought = text[:close].rpartition("<think>")
    return "<think>" not in before and not before.strip() and bool(thought.strip())


def judge(answer: str, target: int, numbers: list[int]) -> tuple[str, bool, bool]:
    """Return (reason, whether the answer has an operator, whether it uses each number exactly once and has a value)."""
    if len(answer) > MAX_ANSWER:
        return "too_long", False, False
    try:
        sides = read_sides(answer)
        calculates = any(isinstance(node, ast.BinOp) for side, _ in sides for node in ast.walk(side))
        values = [value(side) for side, _ in sides]
    except _Rejected as rejected:
        return rejected.args[0], False, False
    except RecursionError:  # hundreds of signs in a row
        return "unparsable", False, False
    if not all(below for _, below in values):
        return "division_by_zero", calculates, False
    matches = [above == target * below for above, below in values]
    uses = [used == numbers for _, used in sides]
    if not any(uses):
        return "target_copied" if all(matches) and not calculates else "wrong_numbers", calculates, False
    if not any(map(operator.and_, uses, matches)):
        return "wrong_value", calculates, True
    return "correct" if all(matches) else "false_equation", calculates, True


@lru_cache(maxsize=4096)  # the responses of one group share one truth
def read_gold(text: str) -> tuple[int, list[int]] | None:
    """(target, sorted numbers) from `{"target": 24, "numbers": [3, 8]}`; None where it is broken."""
    try:
        truth = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(truth, dict) or type(truth.get("target")) is not int or type(truth.get("numbers")) is not list:
        return None
    numbers = truth["numbers"]
    good = numbers and all(type(number) is int and number >= 0 for number in numbers)
    return (truth["target"], sorted(numbers)) if good else None


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str | dict[str, Any],
    extra_info: dict[str, Any] | None = None,
    format_credit: float = FORMAT_CREDIT,
    numbers_credit: float = NUMBERS_CREDIT,
    **kwargs: Any,
) -> dict[str, Any]:
    """verl's entry: the reward of one response.

    Args:
        ground_truth: `{"target": 24, "numbers": [3, 8, 1, 1]}`, as JSON or as a dict.
        format_credit, numbers_credit: partial credits of a wrong answer; their sum should stay far below 1.

    Returns: score, acc (verl's name) and accuracy, format, numbers: floats in [0, 1]; reason: one of `REASONS`.
    """
    truth = json.dumps(ground_truth, default=str) if isinstance(ground_truth, dict) else ground_truth
    gold = read_gold(truth) if isinstance(truth, str) else None
    content, reason, formatted = find_answer(solution_str)
    proper = False
    if gold is None:
        reason, formatted = "gold_unparsable", False
    elif content:
        reason, expression, proper = judge(content, *gold)
        formatted = formatted and (expression or reason == "correct")
    accuracy = float(reason == "correct")
    return {
        "score": accuracy or format_credit * formatted + numbers_credit * proper,
        "acc": accuracy,
        "accuracy": accuracy,
        "format": float(formatted),
        "numbers": float(proper),
        "reason": reason,
    }


def compute_score_batch(reward_inputs: list[dict[str, Any]], **kwargs: Any) -> list[dict[str, float]]:
    """EasyR1's entry. `overall` is the score; each reason becomes a 0/1 key `reason/<code>`, since EasyR1 averages."""
    results = []
    for item in reward_inputs:
        parts = compute_score("", item["response"], item["ground_truth"], **kwargs)
        result = {"overall": parts["score"], **{key: parts[key] for key in ("accuracy", "format", "numbers")}}
        results.append(result | {f"reason/{code}": float(code == parts["reason"]) for code in REASONS})
    return results
