r"""GSM8K's reward: the last stated number equals the gold one, in exact arithmetic.

Score: 1.0 for the right number behind a marker (`#### 72`, `\boxed{72}`, `<answer>72</answer>`, or nothing but the
number), 0.9 where it had to be guessed from unmarked prose, 0.1 for a wrong number behind a marker. The rules, the
reason codes and their why are in docs/REWARD_GSM8K.md.

Standalone, standard library only: trainers load this file by its path in worker processes. Every step is linear in
the response's length.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache
from typing import Any

REWARD_NAME = "gsm8k"  # EasyR1 prints this name
REWARD_TYPE = "batch"  # and calls `compute_score_batch` with a list

FORMAT_CREDIT = 0.1

REASONS = (
    "correct",
    "wrong",  # another number
    "percent",  # 72% where the gold is 72
    "ambiguous",  # the statement holds several numbers
    "unparsable",  # a marker without a number that can be read
    "no_answer",  # no number anywhere
    "answer_in_think",  # the only statement stands inside the thinking
    "truncated",  # the response ends inside the thinking, an answer block, a \boxed{, or right behind ####
    "gold_unparsable",  # the ground truth is no number: the row's fault, not the policy's
)

MAX_STATEMENT = 200  # characters behind a marker
MAX_DIGITS = 30
WINDOW = 160  # characters at the end that are searched first for an unmarked number

_WHOLE = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)"
_DECIMAL = rf"(?:{_WHOLE}(?:\.[0-9]+)?|\.[0-9]+)"
# A number, a fraction or a mixed number ("1 1/2"); not a digit inside a word, an exponent ("m^2"), a version ("v1.5").
_NUMBER = re.compile(
    rf"(?<![0-9A-Za-z_^])(?<!\^\{{)(?<![0-9]\.)"
    rf"(?:([0-9]+) +([0-9]+)/([0-9]+)|({_DECIMAL})(?: ?/ ?({_DECIMAL}))?)([eE][+-]?[0-9])?"
)
_GOLD = re.compile(rf"-?\$?-?{_DECIMAL}(?:/{_DECIMAL})?%?")
_STATES = re.compile(r"[\s*_$€£¥\\({\[:=≈~+−–\u2010\u2011-]*(?:[dt]?frac\{-?)?\.?[0-9]").match  # begins with its number
_FRACTION = re.compile(r"\\[dt]?frac\s*\{(-?[0-9]+)\}\s*\{([0-9]+)\}")
_STOP = re.compile(r"\(|[.!?](?=\s)")  # behind the number: a remark in brackets, or the end of the sentence
# The last number, in the reversed text, where it is no part of a fraction, a word or an exponent.
_BACKWARDS = re.compile(r"[^0-9]*([0-9](?:[0-9,.]*[0-9])?)(?![0-9,./A-Za-z_^{]| /)").match
_BEFORE = "-−–\u2010\u2011$€£¥"  # the characters between which and the number a minus sign can stand
_MARKER = re.compile(r"####|\\boxed|</answer>")
_PERCENT = re.compile(r"\s*(?:%|per ?cent\b)").match
_SCALE = re.compile(r"(?:\s*(hundred|thousand|million|billion|trillion)\b|[kK](?![A-Za-z]))").match
_FACTORS = {None: 1000, "hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_SIMPLE = re.compile(r"\$?([0-9]{1,3}(?:,[0-9]{3}){1,5}|[0-9]{1,18})\.?(?: ([a-z]+)\.?)?").fullmatch  # "$1,234 a"
_NOT_UNITS = {*_FACTORS, "per", "percent"} - {None}
_SPELLINGS = str.maketrans({"−": "-", "–": "-", "\u2010": "-", "\u2011": "-", "％": "%", "＄": "$", "\u00a0": " "})

Number = tuple[int, int, bool]  # numerator, denominator (positive, reduced), is a percentage
Reading = tuple[int, int, bool, str]  # the same, and its one spelling; or 0, 0, False and the reason
Gold = tuple[int, int, bool, str, str]  # the same, spelled without its percent sign, alone and behind `#### `


def _rational(text: str) -> tuple[int, int] | None:
    """`1,234.50` as (123450, 100); None where it has too many digits."""
    whole, _, part = text.replace(",", "").partition(".")
    return (int(whole + part), 10 ** len(part)) if len(whole) + len(part) <= MAX_DIGITS else None


def _minus(before: str) -> bool:
    """Does this text end in a minus sign for the number behind it, and not in a hyphen or a subtraction?"""
    before = before.rstrip("$€£¥\\")
    return before.endswith("-") and not (before[-2:-1].isalnum() or before[-2:-1] in (")", "]", "}", "%"))


def _value(text: str, found: re.Match[str]) -> Number | None:
    """The number at a match of `_NUMBER`, with sign, scale word and percent sign; None where it has no value."""
    mixed, above, below, plain, divisor, exponent = found.groups()
    first, second = (_rational(above), _rational(below)) if mixed else (_rational(plain), _rational(divisor or "1"))
    extra = _rational(mixed or "0")
    if exponent or first is None or second is None or extra is None or second[0] == 0:
        return None
    num, den = first[0] * second[1] + extra[0] * second[0] * first[1], first[1] * second[0]
    scale = _SCALE(text, found.end())
    if scale:
        num *= _FACTORS[scale[1]]
    common = math.gcd(num, den)
    before = text[: found.start()]
    sign = -1 if _minus(before) or before.strip(" *_$\\({[:") == "-" else 1  # "- 5" at the very beginning, too
    return sign * num // common, den // common, _PERCENT(text, found.end()) is not None


@lru_cache(maxsize=16_384)  # the responses of one group repeat each other's answers
def read_statement(text: str) -> Reading:
    """The one number that a statement holds, or the reason why it holds none: "unparsable" or "ambiguous"."""
    simple = _SIMPLE(text)
    if simple and simple[2] not in _NOT_UNITS:  # only for speed; what follows reads the same from it
        number = int(simple[1].replace(",", ""))
        return number, 1, False, str(number)
    text = text.translate(_SPELLINGS).replace("{,}", ",").replace("\\,", "").replace("\\!", "").replace("\\%", "%")
    text = _FRACTION.sub(r" \1/\2", text)
    right = text.rpartition("=")[2]
    text = right if _NUMBER.search(right) else text  # of an equation, the right-hand side
    found = list(_NUMBER.finditer(text))
    stop = _STOP.search(text, found[0].end()) if found else None
    values = {_value(text, match) for match in found if stop is None or match.start() < stop.start()}
    if len(values) > 1:
        return 0, 0, False, "ambiguous"
    number = values.pop() if values else None
    if number is None:
        return 0, 0, False, "unparsable"
    num, den, percent = number
    return num, den, percent, f"{num}{'' if den == 1 else f'/{den}'}{'%' if percent else ''}"


@lru_cache(maxsize=16_384)
def read_gold(text: str) -> Gold | None:
    """The gold number, plain or behind the `####` of an original solution; None where it is not just a number."""
    text = text.rpartition("####")[2].strip()
    if len(text) > MAX_STATEMENT or not _GOLD.fullmatch(text):
        return None
    reading = read_statement(text)
    spelled = reading[3].rstrip("%")
    return (*reading[:3], spelled, f"#### {spelled}") if reading[1] else None


def _hashes(text: str, at: int) -> tuple[str, int]:
    """The last `####` line, from the one at `at`, that states something; headings ("#### Step 2") are passed over."""
    while at != -1:
        rest = text[at + 4 : at + 4 + MAX_STATEMENT].strip()
        line, _, below = rest.partition("\n")
        if "answer" in line.lower() and not _NUMBER.search(line):
            line = below.lstrip().partition("\n")[0]  # a heading "Answer" over its number
        if not line or _STATES(line) or "=" in line or "answer" in line.lower():
            return line, at
        at = text.rfind("####", 0, at)
    return "", -1


def _boxed(text: str, at: int) -> str | None:
    r"""The braces' content of the `\boxed` at this position; None where they do not close."""
    content = text[at + 6 : at + 6 + MAX_STATEMENT].lstrip()
    end = content.find("}")
    if content.startswith("{") and content.find("{", 1, end) == -1 < end:
        return content[1:end]
    depth = 0
    for end, character in enumerate(content):
        depth += (character == "{") - (character == "}")
        if depth <= 0:
            return content[1:end] if end else ""
    return None if at + 6 + MAX_STATEMENT > len(text) else ""


def _last_number(text: str) -> str:
    """The last number of the text with its sign and what follows it; "" where there is none."""
    found = _BACKWARDS(text[: -WINDOW - 1 : -1])
    if found and found.end() < WINDOW - MAX_DIGITS:  # not cut by the window
        start, end = len(text) - found.end(), len(text) - found.start(1)
    else:
        last = None
        for last in _NUMBER.finditer(text):  # noqa: B007
            pass
        if last is None:
            return ""
        start, end = last.span()
    statement = text[start : end + 16].partition("\n")[0]
    if text[start - 1 : start] in _BEFORE and _minus(text[max(0, start - 4) : start].translate(_SPELLINGS)):
        return "-" + statement
    return statement


def find_statement(text: str, at: int) -> tuple[str, str]:
    r"""Where the response states its answer: (statement, how); `at` is where its last `####` stands, or -1.

    `how` is "marked" behind the last of `####`, `\boxed{}` and `<answer>`, or where the number is all there is;
    "unmarked" behind "answer is" or for the last number of the text; else the reason why there is no statement.
    """
    tags = "<" in text
    if at != -1 and not tags:
        line = text[at + 4 :].strip()
        if len(line) <= 40 and "\\" not in line and "\n" not in line and _STATES(line):
            return line, "marked"
    thought = ""
    if tags:
        close = text.rfind("</think>")
        if text.find("<think>", close + 1) != -1:
            return "", "truncated"
        if close != -1:
            thought, text = text[:close], text[close + 8 :]
            at = text.rfind("####")
    statement, at = _hashes(text, at) if at != -1 else ("", -1)
    boxed = text.rfind("\\boxed", at + 1) if "\\" in text else -1
    tag = text.rfind("<answer>", max(at, boxed) + 1) if tags else -1
    if tag != -1:
        end = text.find("</answer>", tag)
        return (text[tag + 8 : end][:MAX_STATEMENT].strip(), "marked") if end != -1 else ("", "truncated")
    if boxed != -1:
        content = _boxed(text, boxed)
        return (content, "marked") if content is not None else ("", "truncated")
    if at != -1:
        return (statement, "marked") if statement else ("", "truncated")
    return _unmarked(text.strip()) or ("", "answer_in_think" if _MARKER.search(thought) else "no_answer")


def _unmarked(text: str) -> tuple[str, str] | None:
    """The statement of a response without a marker; None where it has no number."""
    if len(text) <= 60 and "\n" not in text and _STATES(text) and read_statement(text)[1]:
        return text, "marked"  # nothing but the answer
    weak = text.rfind("nswer", -MAX_STATEMENT)
    if weak != -1 and text.startswith((" is", ":"), weak + 5):
        rest = text[weak + 6 :].lstrip("is: \n").partition("\n")[0]
        if _STATES(rest):
            return rest, "unmarked"
    number = _last_number(text)
    return (number, "unmarked") if number else None


def _result(reason: str, formatted: bool) -> dict[str, Any]:
    accuracy, marked = float(reason == "correct"), float(formatted)
    score = 1.0 if accuracy and formatted else (1.0 - FORMAT_CREDIT) * accuracy + FORMAT_CREDIT * marked
    return {"score": score, "acc": accuracy, "accuracy": accuracy, "format": marked, "pred": "", "reason": reason}


# Templates: copied, never handed out.
_MARKED = {reason: _result(reason, True) for reason in ("correct", "wrong", "percent")}
_UNMARKED = {reason: _result(reason, False) for reason in REASONS}
_correct, _wrong = _MARKED["correct"].copy, _MARKED["wrong"].copy


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str | int,
    extra_info: dict[str, Any] | None = None,
    format_credit: float = FORMAT_CREDIT,
    **kwargs: Any,
) -> dict[str, Any]:
    """verl's entry: the reward of one response.

    Args:
        data_source: not used; the same rules hold for every source.
        solution_str: the response, without the prompt.
        ground_truth: the gold number (`72`, `1,234`, `3/4`, `72%`), or an original solution that ends in `#### 72`.
        extra_info: not used.
        format_credit: the part of the score that a marker earns.
        kwargs: what verl adds (a reward model's address, ...); not used.

    Returns:
        score, acc (verl's name) and accuracy, format: floats in [0, 1]; pred: the number read, for majority votes;
        reason: one of `REASONS`.
    """
    if type(ground_truth) is not str:
        ground_truth = str(ground_truth) if type(ground_truth) is int else ""
    gold = read_gold(ground_truth)
    if gold is None:
        return _UNMARKED["gold_unparsable"].copy()
    if solution_str.endswith(gold[4]) and "<" not in solution_str:  # the common case: `#### 72`, and then the end
        result = _correct()
        result["pred"] = gold[3]
        return result
    at = solution_str.rfind("####")
    pred = solution_str[at + 4 :].strip() if at != -1 else ""
    if pred.isdecimal() and pred.isascii() and pred[0] != "0" and len(pred) <= MAX_DIGITS and "<" not in solution_str:
        result = _wrong() if pred != gold[3] else _correct()  # as common: `#### 70`
        result["pred"] = pred
        if format_credit != FORMAT_CREDIT and not result["accuracy"]:
            result["score"] = format_credit
        return result
    statement, how = find_statement(solution_str, at)
    if how == "marked" or how == "unmarked":
        num, den, percent, pred = read_statement(statement)
        if not den:
            return _UNMARKED[pred].copy()
        equal = num == gold[0] and den == gold[1]
        reason = "wrong" if not equal else "percent" if percent and not gold[2] else "correct"
        result = (_MARKED if how == "marked" else _UNMARKED)[reason].copy()
    else:
        return _UNMARKED[how].copy()
    result["pred"] = pred
    if format_credit != FORMAT_CREDIT and result["accuracy"] != result["format"]:
        result["score"] = 1.0 - format_credit if result["accuracy"] else format_credit
    return result


def compute_score_batch(reward_inputs: list[dict[str, Any]], **kwargs: Any) -> list[dict[str, float]]:
    """EasyR1's entry: one dict of numbers per input (`response`, `ground_truth`), since EasyR1 averages every key.

    `overall` is `compute_score`'s score; the reason becomes one 0/1 key `reason/<code>` per code.
    """
    results = []
    for item in reward_inputs:
        parts = compute_score("", item["response"], item["ground_truth"], **kwargs)
        reason = parts["reason"]
        result = {"overall": parts["score"], "accuracy": parts["accuracy"], "format": parts["format"]}
        results.append(result | {f"reason/{code}": float(code == reason) for code in REASONS})
    return results
