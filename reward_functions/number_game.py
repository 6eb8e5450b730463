r"""The number game's reward: exactly one of 0, 1 and 2 as the answer, equal to the right position.

Score: 1.0 for the right position stated as the prompt asks (nothing but the digit, or "Answer: 2",
`<answer>2</answer>`, `\boxed{2}` at the end), 0.9 where it stands in other words, 0.1 for a wrong position stated as
asked. The rules, the reason codes and their why are in docs/REWARD_NUMBER_GAME.md.

Standalone, standard library only: trainers load this file by its path in worker processes. Every step is linear in
the response's length.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import Any

REWARD_NAME = "number_game"  # EasyR1 prints this name
REWARD_TYPE = "batch"  # and calls `compute_score_batch` with a list

FORMAT_CREDIT = 0.1
POSITIONS = ("0", "1", "2")  # left, middle, right

REASONS = (
    "correct",
    "wrong",  # another position
    "out_of_range",  # one number, but not 0, 1 or 2: a card's number, 12, -1, 1.5, 2%, 2²
    "ambiguous",  # several numbers where one was to be stated; a negation, a hedge, a retraction
    "unparsable",  # a marker without a number
    "no_answer",  # no number anywhere
    "answer_in_think",  # the only statement stands inside the thinking
    "truncated",  # the response ends inside the thinking, an answer block, a \boxed{, or right behind "Answer:"
    "gold_unparsable",  # the ground truth is no position: the row's fault, not the policy's
)

MAX_STATEMENT = 200  # characters behind a marker
END_MARKS = ("</answer>", "<|im_end|>", "<|endoftext|>")  # what may stand behind the digit, and
_EDGE = " \t\r\n.*_`'\"!。$()[]（）"  # what may stand around it

REACH = 80  # characters before the number in which a negation is looked for

_FULL_WIDTH = str.maketrans("０１２３４５６７８９－．％−", "0123456789-.%-")
# A number on its own: not a digit inside a word ("2nd", "B2"); with what makes another number of it.
_NUMBERS = re.compile(
    r"(?<![0-9A-Za-z_])(?<![0-9]\.)((?i:(?:minus|negative|half of) )?[√±<>≤≥≠-]?[0-9]+(?:\.[0-9]+)?)(?![0-9A-Za-z_])"
    r"([!?%‰‱^°²³¹⁰-₟¼-¾⅐-⅞]|(?i: ?(?:per ?cent|hundred|thousand|million|squared|and a half)\b))?"
).finditer
# Before the number, in its clause; behind it; and what may follow only a decided answer.
_DENIED = re.compile(
    r"(?:\b(?:not|never|neither|nor|cannot|either|or|maybe|perhaps|possibly|might|could|may|unsure|without|except|than"
    r"|anything but|far from|instead of)\b|n['’]t\b|[不非没或]|可能|也许)"
    r"(?:(?!\b(?:but|so|then|because)\b)[^,.;:!?\n，。；：！？])*$",
    re.IGNORECASE,
).search
_TAKEN_BACK = re.compile(
    r"^[\s\W]{0,8}(?:or|and|to|maybe|perhaps|或|和|还是)?\s?[012](?![0-9])"
    r"|^[\s*_`\"')]{0,4}(?:is|was)(?:n['’]t| not| wrong)"
    r"|(?:^|[.!?,;:\n(，。；！？-])[\s*]{0,3}(?:no[,.!;:]|no wait|wait\b|hold on|oops|hmm|sorry\b|correction\b"
    r"|actually\b|on second thought|i mean\b|or |maybe\b|perhaps\b|不对|等等)",
    re.IGNORECASE,
).search
_markers = re.compile(
    r"answer[*_]{0,4}(?: is\b|\s?[:：=])|答案(?:[:：]|是|为)|\\boxed\s?\{|<answer>", re.IGNORECASE
).finditer
# Where a statement ends: a remark in brackets, a line, a sentence, a reason.
_STOP = re.compile(r"[(（\n。；;]|[.!?](?=\s|$)|,? *\b(?:because|since)\b|，? *因为", re.IGNORECASE)
_CLOSES = {"<": re.compile("</answer>", re.IGNORECASE).search, "\\": re.compile("}").search}


def find_statement(text: str) -> tuple[str, str, str]:
    r"""Where the response states its answer: (how, statement, what stands behind it).

    `how` is "marked" behind the last marker, "bare" where there is none and the whole text is the statement, else the
    reason why there is no statement.
    """
    close = text.rfind("</think>")
    if text.find("<think>", close + 1) != -1:
        return "truncated", "", ""
    thought, text = (text[:close], text[close + 8 :]) if close != -1 else ("", text)
    last = None
    for last in _markers(text):  # noqa: B007
        pass
    if last is None:
        if not text.strip() and next(_markers(thought), None):
            return "answer_in_think", "", ""
        return "bare", text, ""
    rest = text[last.end() : last.end() + MAX_STATEMENT]
    closing = _CLOSES.get(last[0][0])
    if closing:
        closed = closing(rest)
        return ("marked", rest[: closed.start()], rest[closed.end() :]) if closed else ("truncated", "", "")
    rest = rest.lstrip(" *_:：\n([（")
    if not rest:
        return "truncated", "", ""
    stop = _STOP.search(rest)
    end = stop.start() if stop else len(rest)
    return "marked", rest[:end], rest[end:]


def read_answer(text: str) -> tuple[str, str, bool]:
    """The response's (reason, answer, stated as asked); the reason is "" where the answer is "0", "1" or "2"."""
    how, statement, behind = find_statement(text if text.isascii() else text.translate(_FULL_WIDTH))
    if how not in ("marked", "bare"):
        return how, "", False
    numbers = list(islice(_NUMBERS(statement), 2))
    if len(numbers) != 1:
        return "ambiguous" if numbers else "unparsable" if how == "marked" else "no_answer", "", False
    number, altered = numbers[0].groups()
    if number not in POSITIONS or altered:
        return "out_of_range", "", False
    before, after = statement[: numbers[0].start()], statement[numbers[0].end() :] + behind
    for mark in END_MARKS:
        after = after.replace(mark, "")
    rest, lead = after.strip(_EDGE), before.strip(_EDGE)
    if (lead and _DENIED(before[-REACH:])) or (rest and _TAKEN_BACK(after)):
        return "ambiguous", "", False
    return "", number, not rest and (how == "marked" or not lead)


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
        format_credit: the part of the score that stating the answer as asked earns.
        data_source, extra_info, kwargs: what verl hands over; not used.

    Returns:
        score, acc (verl's name) and accuracy, format: floats in [0, 1]; pred: "0", "1", "2" or "", for majority votes;
        reason: one of `REASONS`.
    """
    gold = str(ground_truth).strip() if type(ground_truth) in (str, int) else ""
    reason, pred, asked = read_answer(solution_str) if gold in POSITIONS else ("gold_unparsable", "", False)
    if pred:
        reason = "correct" if pred == gold else "wrong"
    accuracy, formatted = float(reason == "correct"), float(asked)
    return {
        "score": 1.0 if accuracy and asked else (1.0 - format_credit) * accuracy + format_credit * formatted,
        "acc": accuracy,
        "accuracy": accuracy,
        "format": formatted,
        "pred": pred,
        "reason": reason,
    }


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
