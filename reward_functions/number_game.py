r"""The number game's reward: 1.0 for the right position behind the last marker, 0.1 for a wrong one there, else 0.

A marker is `Answer: 2`, which the prompt asks for, `the answer is 2`, `#### 2`, `\boxed{2}` or `<answer>2</answer>`.
The last marker counts, and its whole content has to be 0, 1 or 2. A response that is only a position counts as marked.
docs/REWARD_ANSWERS.md has the whole rule, which only Countdown and programs do not share, and a table of examples.

Worker processes load this file by its path; it loads `sources/answers.py` beside it. Standard library only.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
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

_spec = importlib.util.spec_from_file_location("stated_answers", Path(__file__).resolve().parent / "sources/answers.py")
assert _spec is not None
assert _spec.loader is not None
answers = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(answers)


def read_position(statement: str) -> str:
    """Return the position that a statement consists of; "" for anything else, such as `1?`, `.1`, `-1`, `1 or 2`."""
    text = answers.plain(statement).strip("()[] ").rstrip(".。") if len(statement) <= answers.LONGEST else ""
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
        ground_truth: the right position, "0" (left), "1" (middle) or "2" (right).
        format_credit: what a wrong position behind a marker earns.

    Returns:
        score, acc (verl's name) and accuracy, format: floats in [0, 1]; pred: the position read; reason: of `REASONS`.
    """
    gold = str(ground_truth).strip() if type(ground_truth) in (str, int) else ""
    stated = answers.find(solution_str)
    pred = read_position(stated.text) if stated.asked_for and gold in POSITIONS else ""
    if gold not in POSITIONS:
        reason = "gold_unparsable"
    elif pred:
        reason = "correct" if pred == gold else "wrong"
    else:
        reason = stated.unread
    accuracy, form = float(reason == "correct"), float(pred != "")
    score = accuracy or format_credit * form
    return {"score": score, "acc": accuracy, "accuracy": accuracy, "format": form, "pred": pred, "reason": reason}


def compute_score_batch(reward_inputs: list[dict[str, Any]], **kwargs: Any) -> list[dict[str, float]]:
    """EasyR1's entry. `overall` is the score; each reason becomes a 0/1 key `reason/<code>`, since EasyR1 averages."""
    results = []
    for item in reward_inputs:
        parts = compute_score("", item["response"], item["ground_truth"], **kwargs)
        result = {"overall": parts["score"], "accuracy": parts["accuracy"], "format": parts["format"]}
        results.append(result | {f"reason/{code}": float(code == parts["reason"]) for code in REASONS})
    return results
