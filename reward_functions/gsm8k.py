r"""GSM8K's reward: 1.0 for the gold number behind the last marker, 0.1 for another number there, else 0.

A marker is `#### 72`, `\boxed{72}` or `<answer>72</answer>`; the last one counts, and in it the first number, read as
OpenAI's own grader reads it. What stands before and behind a marker changes nothing. Prose is not read, unless
`flexible` is on: then the last number of a response without a marked one counts, as in lm-evaluation-harness.
docs/REWARD_ANSWERS.md has the rule, which is the same for every task, and its table.

Standalone, standard library only: trainers load this file by its path in worker processes. Every step is linear.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

REWARD_NAME = "gsm8k"  # EasyR1 prints this name
REWARD_TYPE = "batch"  # and calls `compute_score_batch` with a list

FORMAT_CREDIT = 0.1
REASONS = (
    "correct",
    "wrong",  # another number
    "no_answer",  # no marker
    "unparsable",  # a marker without one number
    "truncated",  # the response ends inside the marker or inside the thinking
    "gold_unparsable",  # the ground truth is no number: the row's fault, not the policy's
)
LONGEST = 2000  # characters of a statement
LONGEST_NUMBER = 90  # characters

# One spelling: full-width forms, dashes that are a minus, currency signs. The same table as in sources/answers.py.
SPELLINGS: dict[int, str] = {code: chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)} | {0x3000: " ", 0xA0: " "}
SPELLINGS |= dict.fromkeys(map(ord, "\u2212\u2010\u2011\u2012\u2013\u2014\ufe63"), "-")
SPELLINGS |= dict.fromkeys(map(ord, "€£¥￥"), "$")
_SPACING = re.compile(r"\\[,;:!]|\{,\}")  # 1\,234 and 1{,}234 are 1,234
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_RUN = re.compile(r"(?<![0-9A-Za-z_.])(-?)\$?(-?)(\.?[0-9][0-9.,]*)")
_WELL_FORMED = re.compile(r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)?(?:\.[0-9]+)?").fullmatch
_EXPONENT = re.compile(r"[eE][-+]?[0-9]").match
_NAME = re.compile(r"\\[A-Za-z]+")
_ANOTHER = re.compile(r"\W*(?:(?:or|and)\W+)?[0-9]").match  # behind a number: `5 or 7`, `8 \times 9`, `2^3`, `1/5`


def find(response: str) -> tuple[str, str]:
    r"""(how, statement): "line" behind `####`, "field" in `\boxed{}` or `<answer>`, else the reason, and the text."""
    text, thinking, _ = response.rpartition("</think>")[2].partition("<think>")
    hashes, boxed, tag = text.rfind("####"), text.rfind("\\boxed{"), text.rfind("<answer>")
    last = max(hashes, boxed, tag)
    if last == -1:
        return "truncated" if thinking else "no_answer", text
    if last == hashes:
        line = text[last + 4 :].partition("\n")[0]
        return (
            ("line", line.partition("<|")[0].strip()[: LONGEST + 1]) if text[last + 4 :].strip() else ("truncated", "")
        )
    end = text.find("</answer>", last) if last == tag else _closing_brace(text, last + 7)
    if end == -1:
        return "truncated", ""
    return "field", text[last + (8 if last == tag else 7) : end].strip()[: LONGEST + 1]


def _closing_brace(text: str, start: int) -> int:
    depth = 1
    for match in _BRACE.finditer(text, start):
        depth += (match[0] == "{") - (match[0] == "}")
        if depth == 0:
            return match.start()
    return -1


@lru_cache(maxsize=16_384)  # the responses of one group repeat each other's answers
def read_number(how: str, text: str) -> str:
    """The number of a statement in its one spelling; "" where there is none.

    Args:
        how: "line": the first number; "field": the same, unless another stands right behind it; "last": the last one.
        text: the statement, or the whole response where `how` is "last".
    """
    if how != "last" and len(text) > LONGEST:
        return ""
    text = _SPACING.sub(lambda match: "," if match[0] == "{,}" else "", text.translate(SPELLINGS)).replace("\\$", "$")
    text = "-" + text[2:].lstrip() if text.startswith("- ") else text
    match = None
    for match in _RUN.finditer(text):  # noqa: B007
        if how != "last":
            break
    if match is None:
        return ""
    digits = match[3].rstrip(".,")
    end = match.start(3) + len(digits)
    if len(digits) > LONGEST_NUMBER or not _WELL_FORMED(digits) or text[end : end + 1].isnumeric():
        return ""  # 1,23 and 1.2.3; 72² and 1½
    if _EXPONENT(text, end) or (how == "field" and _ANOTHER(_NAME.sub(" ", text[end:]))):
        return ""
    whole, _, part = digits.replace(",", "").partition(".")
    number = (whole.lstrip("0") or "0") + f".{part}".rstrip("0").rstrip(".")
    return "-" + number if (match[1] or match[2]) and number != "0" else number


@lru_cache(maxsize=16_384)
def read_gold(text: str) -> str:
    """The gold number, alone or behind the `####` of a worked solution; "" where it is not just a number."""
    text = text.rpartition("####")[2].strip().removesuffix("%").removesuffix(".")
    return read_number("line", text) if re.fullmatch(r"[-+]?\$?-?[0-9.,]+", text) else ""


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str | int,
    extra_info: dict[str, Any] | None = None,
    format_credit: float = FORMAT_CREDIT,
    flexible: bool = False,
    **kwargs: Any,
) -> dict[str, Any]:
    """verl's entry: the reward of one response.

    Args:
        solution_str: the response, without the prompt.
        ground_truth: the gold number (`72`, `1,234`), or a worked solution that ends in `#### 72`.
        format_credit: what a wrong number behind a marker earns, and what a right one without a marker lacks.
        flexible: where no marker states a number, read the last one of the response. For evaluating base models;
            training teaches the form.
        data_source, extra_info, kwargs: what verl hands over; not used.

    Returns:
        score, acc (verl's name) and accuracy, format: floats in [0, 1]; pred: the number read, for majority votes;
        reason: one of `REASONS`.
    """
    gold = read_gold(str(ground_truth)) if type(ground_truth) in (str, int) else ""
    response = solution_str if isinstance(solution_str, str) else ""
    how, statement = find(response)
    marked = how in ("line", "field")
    pred = read_number(how, statement) if marked else ""
    form = float(pred != "" and gold != "")
    reason = "unparsable" if marked else how
    if not pred and flexible and reason in ("no_answer", "unparsable"):
        pred = read_number.__wrapped__("last", response.rpartition("</think>")[2])
    if not gold:
        reason, pred = "gold_unparsable", ""
    elif pred:
        reason = "correct" if pred == gold else "wrong"
    accuracy = float(reason == "correct")
    score = 1.0 if accuracy and form else (1.0 - format_credit) * accuracy + format_credit * form
    return {"score": score, "acc": accuracy, "accuracy": accuracy, "format": form, "pred": pred, "reason": reason}


def compute_score_batch(reward_inputs: list[dict[str, Any]], **kwargs: Any) -> list[dict[str, float]]:
    """EasyR1's entry: `overall` is `compute_score`'s score; a 0/1 key `reason/<code>` each, since EasyR1 averages."""
    results = []
    for item in reward_inputs:
        parts = compute_score("", item["response"], item["ground_truth"], **kwargs)
        result = {"overall": parts["score"], "accuracy": parts["accuracy"], "format": parts["format"]}
        results.append(result | {f"reason/{code}": float(code == parts["reason"]) for code in REASONS})
    return results
