"""EasyR1's `compute_score_batch` over a reward of any form; EasyR1 loads this file by its path.

The data source, which EasyR1 does not hand on, comes out of the truth: `{"data_source": ..., "ground_truth": ...}`.
"""

import json
from functools import lru_cache
from typing import Any

from recipes.rewards.contract import Answer
from recipes.rewards.function import VERL, Call, RewardFunction, load_function

REWARD_NAME = "compute_score"  # EasyR1 prints this name
REWARD_TYPE = "batch"  # EasyR1 calls `compute_score_batch` with a list


@lru_cache(maxsize=1)
def _function(location: str, arguments: str) -> RewardFunction:
    return load_function(location, json.loads(arguments), "easyr1")


def unwrapped(truth: Any) -> tuple[str, Any]:
    """(data source, ground truth) of a row; the source is "" where the truth has no envelope."""
    try:
        envelope = json.loads(truth) if isinstance(truth, str) and truth.startswith("{") else None
    except ValueError:
        envelope = None
    if isinstance(envelope, dict) and envelope.keys() == {"data_source", "ground_truth"}:
        return envelope["data_source"], envelope["ground_truth"]
    return "", truth


def compute_score_batch(
    reward_inputs: list[dict[str, Any]], path: str, arguments: dict[str, Any] | None = None
) -> list[dict[str, float]]:
    """One dict of numbers per input: `overall`, the reward's other numbers, and under `<source>/` score and accuracy.

    Args:
        reward_inputs: `response`, `response_length` and `ground_truth` of each; `id` of its row, for messages.
        path: `file.py` or `file.py:function` of the reward; without a function `compute_score_batch` is tried first.
        arguments: further arguments of the function.
    """
    function = _function(path, json.dumps(arguments or {}))
    answers = function.score_all([call_of(item, function.form) for item in reward_inputs])
    sources = [unwrapped(item["ground_truth"])[0] for item in reward_inputs]
    return [numbers(source, answer) for source, answer in zip(sources, answers, strict=True)]


def call_of(item: dict[str, Any], form: str) -> Call:
    """Convert an EasyR1 input to a call; rewards of verl's form get the truth unwrapped, others get it as stored."""
    source, truth = unwrapped(item["ground_truth"]) if form == VERL else ("", item["ground_truth"])
    return Call(source, item["response"], truth, {}, length=item.get("response_length"), row=item.get("id"))


def numbers(source: str, answer: Answer) -> dict[str, float]:
    """An answer as EasyR1 takes it: numbers alone, since EasyR1 averages each key over the results that have it."""
    found = {name: float(value) for name, value in answer.parts.items() if isinstance(value, int | float)}
    if source:
        found |= {f"{source}/{name}": value for name, value in {**answer.stated, "score": answer.score}.items()}
    return {**found, **answer.stated, "overall": answer.score}
