r"""GSM8K's reward: 1.0 for the gold number behind the last marker, 0.1 for another number there, else 0.

A marker is `#### 72`, `Answer: 72`, `the answer is 72`, `\boxed{72}` or `<answer>72</answer>`. The last marker counts,
and the first number in it, as in OpenAI's grader. A response that consists of one number counts as marked. Other prose
is not read, unless `flexible` is on: then the last number of a response without a marked number counts, as in
lm-evaluation-harness. docs/REWARD_ANSWERS.md has the whole rule, which only Countdown and programs do not share, and a
table of examples.

Worker processes load this file by its path; it loads `sources/answers.py` beside it. Standard library only.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
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

_spec = importlib.util.spec_from_file_location("stated_answers", Path(__file__).resolve().parent / "sources/answers.py")
assert _spec is not None
assert _spec.loader is not None
answers = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(answers)


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
        ground_truth: the gold number (`72`, `1,234`), or a worked solution that ends in `#### 72`.
        format_credit: the score of a wrong number behind a marker, and the deduction for a right one without a marker.
        flexible: where no marker states a number, read the response's last number. For evaluating base models; in
            training the policy learns to write the marker.

    Returns:
        score, acc (verl's name) and accuracy, format: floats in [0, 1]; pred: the number read; reason: of `REASONS`.
    """
    gold = answers.gold_number(str(ground_truth)) if type(ground_truth) in (str, int) else ""
    stated = answers.find(solution_str)
    pred = answers.number(stated)
    form = float(pred != "" and gold != "")
    reason = stated.unread
    if not pred and flexible and reason != "truncated":
        pred = answers.last_number(stated.response)
    if not gold:
        reason, pred = "gold_unparsable", ""
    elif pred:
        reason = "correct" if pred == gold else "wrong"
    accuracy = float(reason == "correct")
    score = 1.0 if accuracy and form else (1.0 - format_credit) * accuracy + format_credit * form
    return {"score": score, "acc": accuracy, "accuracy": accuracy, "format": form, "pred": pred, "reason": reason}


def compute_score_batch(reward_inputs: list[dict[str, Any]], **kwargs: Any) -> list[dict[str, float]]:
    """EasyR1's entry. `overall` is the score; each reason becomes a 0/1 key `reason/<code>`, since EasyR1 averages."""
    results = []
    for item in reward_inputs:
        parts = compute_score("", item["response"], item["ground_truth"], **kwargs)
        result = {"overall": parts["score"], "accuracy": parts["accuracy"], "format": parts["format"]}
        results.append(result | {f"reason/{code}": float(code == parts["reason"]) for code in REASONS})
    return results
