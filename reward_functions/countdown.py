"""Countdown's reward: an equation that uses each given number exactly once and makes the target, in exact arithmetic.

Score: 1.0 for a correct equation, whatever stands around it. Otherwise 0.1 for the format, plus 0.1 for an expression
that uses each given number exactly once. docs/REWARD_COUNTDOWN.md has the rules, the reason codes and their why.

Standalone, standard library only: trainers load this file by its path in worker processes. The expression is read in
one pass, without recursion and without `eval`; every step is linear in the response's length.
"""

from __future__ import annotations

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
    "wrong_value",  # each number once, another value
    "false_equation",  # the expression is right, but a side behind `=` has another value
    "wrong_numbers",  # a number missing, repeated or foreign
    "target_copied",  # the target itself as the answer
    "division_by_zero",
    "forbidden_operator",  # ** // ^ % !
    "unparsable",  # not an arithmetic expression
    "too_long",  # longer than MAX_ANSWER characters
    "no_answer",  # no answer block, or an empty one
    "answer_in_think",  # the only answer stands inside the thinking
    "truncated",  # the response ends inside the thinking or inside the answer
    "gold_unparsable",  # the ground truth is broken: the row's fault, not the policy's
)

MAX_ANSWER = 1000  # characters; a LaTeX answer with six numbers takes some 200
MAX_GOLD = 10_000
END_MARKS = ("", "<|im_end|>", "<|endoftext|>")  # what may stand behind the answer where specials are not skipped

_tokens = re.compile(r"[0-9]+|[^\s\\*/]|\*\*?|//?|\\[A-Za-z]+|\\.|\\").findall
_FULL_WIDTH = str.maketrans("０１２３４５６７８９", "0123456789")
_decode = json.JSONDecoder().raw_decode

# Every spelling of a token -> one canonical character; a number is what is not in here and begins with a digit.
_SPELLINGS = {
    "+": "+ ＋",
    "-": "- − – － \u2010 \u2011",
    "*": r"* × ✕ ✖ ⋅ · ∙ • ∗ ＊ x X \times \cdot \ast",
    "/": r"/ ÷ ∕ ⁄ ／ \div",
    "=": "= ＝",
    "(": "( （",
    ")": ") ）",
    "[": r"[ \lbrack",
    "]": r"] \rbrack",
    "{": "{",
    "}": "}",
    "F": r"\frac \dfrac \tfrac",
    "!": r"** // ^ % ! \%",  # forbidden
    " ": r"$ \( \) \[ \] \left \right \big \Big \bigl \bigr \, \; \: \! \quad \boxed \displaystyle",
}
_KIND = {spelling: kind for kind, spellings in _SPELLINGS.items() for spelling in spellings.split()} | {"\\ ": " "}
_CLOSES = {"(": ")", "[": "]", "{": "}", "F": "}", "G": "}"}  # F, G: the braces of a numerator, a denominator

Side = tuple[int, int, list[int], bool]  # one side of an equation: value num / den, its numbers, has an operator


class _Rejected(Exception):
    """The answer is no arithmetic expression; the argument is the reason code."""


def read_equation(text: str) -> list[Side]:
    """The sides of `A`, or of `A = B = ...`, in one pass over the tokens.

    Each open bracket holds a sum `sn / sd` and, behind it, the product `pn / pd` that is still growing. Fractions are
    never reduced; a denominator of 0 marks a division by zero and stays 0 through every later step.

    Raises:
        _Rejected: with "unparsable" or "forbidden_operator".
    """
    sides: list[Side] = []
    frames: list[tuple[int, int, int, int, bool, str]] = []  # what stands before each open bracket, and its kind
    numbers: list[int] = []
    sn, sd, pn, pd = 0, 1, 1, 1
    divide = False  # the next factor divides the product
    operand = True  # an operand must come next
    calculates = False
    brace = ""  # "F" or "G": the next token must be the brace around a \frac's numerator or denominator
    kinds = _KIND.get
    tokens = _tokens(text if text.isascii() else text.translate(_FULL_WIDTH))
    tokens.append("=")  # the end closes the last side, as an `=` does
    for token in tokens:
        kind = kinds(token)
        if kind is None:
            # Two operands in a row ("1 2", "2(3)", "1 \frac{1}{2}") have more than one reading, so they have none here.
            if not operand or brace or not "0" <= token < ":" or (token[0] == "0" and token != "0"):
                raise _Rejected("unparsable")
            number = int(token)
            numbers.append(number)
            if divide:
                pd *= number
            else:
                pn *= number
            operand = False
        elif kind == " ":
            continue
        elif kind == "!":
            raise _Rejected("forbidden_operator")
        elif operand:
            if brace and kind != "{":
                raise _Rejected("unparsable")
            if kind == "(" or kind == "{" or kind == "[":
                frames.append((sn, sd, pn, pd, divide, brace or kind))
                sn, sd, pn, pd, divide, brace = 0, 1, 1, 1, False, ""
            elif kind == "-":
                pn = -pn
            elif kind == "F":
                brace, calculates = "F", True
            elif kind != "+":
                raise _Rejected("unparsable")
        elif kind == "*" or kind == "/":
            divide, operand, calculates = kind == "/", True, True
        elif kind == "+" or kind == "-":
            sn, sd = sn * pd + pn * sd, sd * pd
            pn, pd, divide, operand, calculates = (1 if kind == "+" else -1), 1, False, True, True
        elif kind == "=":
            if frames:
                raise _Rejected("unparsable")
            sides.append((sn * pd + pn * sd, sd * pd, numbers, calculates))
            numbers, operand, calculates = [], True, False
            sn, sd, pn, pd, divide = 0, 1, 1, 1, False
        else:
            num, den = sn * pd + pn * sd, sd * pd
            if not frames or _CLOSES[frames[-1][5]] != kind:
                raise _Rejected("unparsable")
            sn, sd, pn, pd, divide, opener = frames.pop()
            if den == 0 or (opener == "G" and num == 0):
                num = den = 0
            if divide:
                num, den = den, num
            pn, pd = pn * num, pd * den
            if opener == "F":  # the denominator is a factor on the other side
                divide, brace, operand = not divide, "G", True
    return sides


def find_answer(text: str) -> tuple[str, str, bool]:
    """The final answer of a response: (content, reason, format).

    The answer is the last `<answer>` block behind the last `</think>`; where there is none, content is "" and reason
    says why, else reason is "". `format` is True where the response is reasoning, `</think>`, one answer block and
    nothing behind it; the opening `<think>` may stand in the prompt, as some chat templates have it.
    """
    close = text.rfind("</think>")
    opened = text.find("<think>", close + 1)
    if opened != -1:
        return "", "answer_in_think" if text.find("</answer>", opened) != -1 else "truncated", False
    start = text.rfind("<answer>", close + 1)
    if start == -1:
        return "", "answer_in_think" if close != -1 and text.rfind("</answer>", 0, close) != -1 else "no_answer", False
    end = text.find("</answer>", start)
    if end == -1:
        return "", "truncated", False
    content = text[start + 8 : end].strip()
    if not content:
        return "", "no_answer", False
    return content, "", text[end + 9 :].strip() in END_MARKS and _thought(text, close, start)


def _thought(text: str, close: int, start: int) -> bool:
    """Is `text[:close]` one block of reasoning, and the answer at `start` the only one behind it?"""
    if close == -1 or text.find("</think>") != close or text.find("<answer>", close) != start:
        return False
    opened = text.find("<think>")
    begin = 0 if opened == -1 else opened + 7
    if opened > 0 and not text[:opened].isspace():
        return False
    return begin < close and not text[begin:close].isspace() and text.find("<think>", begin) == -1


def judge(answer: str, target: int, numbers: list[int]) -> tuple[str, bool, bool]:
    """The answer's (reason, is an expression with an operator, uses each number exactly once and has a value).

    Args:
        answer: the answer block's content.
        target: the value to make.
        numbers: the given numbers, sorted.
    """
    if len(answer) > MAX_ANSWER:
        return "too_long", False, False
    try:
        sides = read_equation(answer[:-1] if answer[-1] == "." else answer)
    except _Rejected as rejected:
        return rejected.args[0], False, False
    if len(sides) == 1:
        num, den, used, calculates = sides[0]
        used.sort()
        proper, exact, defined = used == numbers, num == target * den, den != 0
        true = exact
    else:
        matches = [num == target * den for num, den, _, _ in sides]
        uses = [sorted(used) == numbers for _, _, used, _ in sides]
        proper, exact, true = any(uses), any(map(operator.and_, uses, matches)), all(matches)
        defined, calculates = all(side[1] for side in sides), any(side[3] for side in sides)
    if not defined:
        return "division_by_zero", calculates, False
    if proper:
        return ("correct" if true else "false_equation") if exact else "wrong_value", calculates, True
    return "target_copied" if true and not calculates else "wrong_numbers", calculates, False


def read_gold(ground_truth: object) -> tuple[int, list[int]] | None:
    """(target, sorted numbers) from `{"target": 24, "numbers": [3, 8]}`, a dict or its JSON; None where broken."""
    if isinstance(ground_truth, str):
        return _read_gold_text(ground_truth)
    if not isinstance(ground_truth, dict):
        return None
    try:
        values = [ground_truth["target"], *ground_truth["numbers"]]
        kinds = set(map(type, values))
        if kinds != {int}:
            if bool in kinds:
                return None
            values = [operator.index(value) for value in values]  # numpy's integers too, but no float and no text
    except (KeyError, TypeError):
        return None
    numbers = sorted(values[1:])
    return (values[0], numbers) if numbers and numbers[0] >= 0 else None


@lru_cache(maxsize=4096)  # the responses of one group share one truth
def _read_gold_text(text: str) -> tuple[int, list[int]] | None:
    text = text.strip()
    if len(text) > MAX_GOLD:
        return None
    try:
        truth, end = _decode(text)
    except (ValueError, RecursionError):
        return None
    return read_gold(truth) if end == len(text) and isinstance(truth, dict) else None


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
        solution_str: the response, without the prompt.
        ground_truth: `{"target": 24, "numbers": [3, 8, 1, 1]}` as JSON or as a dict.
        format_credit, numbers_credit: partial credits of a wrong answer; their sum should stay far below 1.
        data_source, extra_info, kwargs: what verl hands over; not used.

    Returns:
        score, acc (verl's name) and accuracy, format, numbers: floats in [0, 1]; reason: one of `REASONS`.
    """
    gold = read_gold(ground_truth)
    content, reason, formatted = find_answer(solution_str)
    proper = False
    if gold is None:
        reason, formatted = "gold_unparsable", False
    elif content:
        reason, expression, proper = judge(content, *gold)
        formatted = formatted and (expression or reason == "correct")
    accuracy = 1.0 if reason == "correct" else 0.0
    return {
        "score": accuracy or format_credit * formatted + numbers_credit * proper,
        "acc": accuracy,
        "accuracy": accuracy,
        "format": 1.0 if formatted else 0.0,
        "numbers": 1.0 if proper else 0.0,
        "reason": reason,
    }


def compute_score_batch(reward_inputs: list[dict[str, Any]], **kwargs: Any) -> list[dict[str, float]]:
    """EasyR1's entry: one dict of numbers per input (`response`, `ground_truth`), since EasyR1 averages every key.

    `overall` is `compute_score`'s score; the reason becomes one 0/1 key `reason/<code>` per code, whose mean is the
    share of responses with that reason.
    """
    results = []
    for item in reward_inputs:
        parts = compute_score("", item["response"], item["ground_truth"], **kwargs)
        reason = parts.pop("reason")
        del parts["acc"]
        result = {"overall": parts.pop("score"), **parts}
        results.append(result | {f"reason/{code}": float(code == reason) for code in REASONS})
    return results
