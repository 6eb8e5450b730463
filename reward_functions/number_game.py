r"""The number game's reward: 1.0 for the right position behind the last marker, 0.1 for another one, else 0.

A marker is `Answer: 2`, which the prompt asks for, `#### 2`, `\boxed{2}` or `<answer>2</answer>`; the last one counts,
and all of it has to be 0, 1 or 2. docs/REWARD_ANSWERS.md has the rule, which is the same for every task, and its table.

Standalone, standard library only: trainers load this file by its path in worker processes. Every step is linear.
"""

from __future__ import annotations

import re
from typing import Any

REWARD_NAME = "number_game"  # EasyR1 prints this name
REWARD_TYPE = "batch"  # and calls `compute_score_batch` with a list

FORMAT_CREDIT = 0.1
POSITIONS = ("0", "1", "2")  # left, middle, right
REASONS = (
    "correct",
    "wrong",  # another position
    "no_answer",  # no marker
    "unparsable",  # a marker without a position
    "truncated",  # the response ends inside the marker or inside the thinking
    "gold_unparsable",  # the ground truth is no position: the row's fault, not the policy's
)
LONGEST = 2000  # characters of a statement

# One spelling: full-width forms, dashes that are a minus. The same table as in sources/answers.py.
SPELLINGS: dict[int, str] = {code: chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)} | {0x3000: " ", 0xA0: " "}
SPELLINGS |= dict.fromkeys(map(ord, "\u2212\u2010\u2011\u2012\u2013\u2014\ufe63"), "-")
SPELLINGS |= dict.fromkeys(map(ord, "€£¥￥"), "$")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_ANSWER = re.compile(r"answer[*_]{0,3}[:：]", re.IGNORECASE)
_COMMAND = re.compile(r"\\(?:text|textbf|mathrm)(?![A-Za-z])|\\[,;:! ]|[{}]")
_EDGE = " \t\r\n*_`\"'“”‘’$()[]"


def find(response: str) -> tuple[str, str]:
    r"""(how, statement): "line" behind `####` or `Answer:`, "field" in `\boxed{}` or `<answer>`, else the reason."""
    text, thinking, _ = response.rpartition("</think>")[2].partition("<think>")
    hashes, boxed, tag = text.rfind("####"), text.rfind("\\boxed{"), text.rfind("<answer>")
    answer, behind = -1, 0
    for match in _ANSWER.finditer(text):
        answer, behind = match.span()
    last = max(hashes, boxed, tag, answer)
    if last == -1:
        return "truncated" if thinking else "no_answer", text
    if last in (hashes, answer):
        rest = text[behind if last == answer else last + 4 :]
        return (
            ("line", rest.partition("\n")[0].partition("<|")[0].strip()[: LONGEST + 1])
            if rest.strip()
            else ("truncated", "")
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


def read_position(statement: str) -> str:
    """The position that is all of a statement; "" where it is anything else, such as `1?`, `.1`, `-1`, `1 or 2`."""
    if len(statement) > LONGEST:
        return ""
    text = _COMMAND.sub("", statement.translate(SPELLINGS)).lstrip(_EDGE).rstrip(_EDGE + ".。")
    return text if text in POSITIONS else ""


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
        solution_str: the response, without the prompt.
        ground_truth: the right position, "0" (left), "1" (middle) or "2" (right).
        format_credit: what a wrong position behind a marker earns.
        data_source, extra_info, kwargs: what verl hands over; not used.

    Returns:
        score, acc (verl's name) and accuracy, format: floats in [0, 1]; pred: "0", "1", "2" or "", for majority votes;
        reason: one of `REASONS`.
    """
    gold = str(ground_truth).strip() if type(ground_truth) in (str, int) else ""
    how, statement = find(solution_str if isinstance(solution_str, str) else "")
    pred = ""
    if gold not in POSITIONS:
        reason = "gold_unparsable"
    elif how in ("line", "field"):
        pred = read_position(statement)
        reason = ("correct" if pred == gold else "wrong") if pred else "unparsable"
    else:
        reason = how
    accuracy, form = float(reason == "correct"), float(pred != "")
    score = accuracy or format_credit * form
    return {"score": score, "acc": accuracy, "accuracy": accuracy, "format": form, "pred": pred, "reason": reason}


def compute_score_batch(reward_inputs: list[dict[str, Any]], **kwargs: Any) -> list[dict[str, float]]:
    """EasyR1's entry: `overall` is `compute_score`'s score; a 0/1 key `reason/<code>` each, since EasyR1 averages."""
    results = []
    for item in reward_inputs:
        parts = compute_score("", item["response"], item["ground_truth"], **kwargs)
        result = {"overall": parts["score"], "accuracy": parts["accuracy"], "format": parts["format"]}
        results.append(result | {f"reason/{code}": float(code == parts["reason"]) for code in REASONS})
    return results
