"""EasyR1's `compute_score_batch` over a reward that judges one response: `compute_score`, plain or async.

EasyR1 loads this file by its path, with the reward's own path as an argument. The data source, which EasyR1
does not hand on, comes out of the ground truth: `{"data_source": ..., "ground_truth": ...}` as JSON.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from recipes.python_files import awaited, loaded

REWARD_NAME = "compute_score"  # EasyR1 prints this name
REWARD_TYPE = "batch"  # and calls `compute_score_batch` with a list


@lru_cache(maxsize=1)
def _function(path: str) -> Callable[..., Any]:
    function: Callable[..., Any] = loaded(path, "reward_of_the_user").compute_score
    return function


def opened(truth: Any) -> tuple[str, Any]:
    """(data source, ground truth) of a row; no source where the truth stands alone."""
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
    """One dict of numbers per input: `overall`, the reward's own numbers, and both again under `<source>/`.

    Args:
        reward_inputs: `response` and `ground_truth` of each.
        path: file of the reward.
        arguments: further arguments of its `compute_score`.
    """
    function = _function(path)
    sources, calls = [], []
    for item in reward_inputs:
        source, truth = opened(item["ground_truth"])
        sources.append(source)
        call = {"data_source": source, "solution_str": item["response"], "ground_truth": truth, "extra_info": {}}
        calls.append({**call, **(arguments or {})})
    if inspect.iscoroutinefunction(function):
        results = awaited(_gathered(function, calls))
    else:
        results = [function(**call) for call in calls]
    return [_numbers(source, result) for source, result in zip(sources, results, strict=True)]


async def _gathered(function: Callable[..., Any], calls: list[dict[str, Any]]) -> list[Any]:
    return await asyncio.gather(*(function(**call) for call in calls))


def _numbers(source: str, result: Any) -> dict[str, float]:
    """EasyR1 averages each key over the results that have it, so text is left out."""
    parts = dict(result) if isinstance(result, dict) else {"score": result}
    score = parts.pop("score")
    numbers = {name: float(value) for name, value in parts.items() if isinstance(value, int | float)}
    numbers.setdefault("accuracy", numbers.get("acc", float(score)))  # by which dynamic sampling chooses
    if source:
        own = {f"{source}/{name}": value for name, value in numbers.items() if name in ("acc", "accuracy")}
        numbers |= {**own, f"{source}/score": float(score)}
    return {"overall": score, **numbers}
