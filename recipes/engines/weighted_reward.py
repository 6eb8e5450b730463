"""Several rewards, added up by weights; each is a metric of its own, `reward/<name>`.

Trainers load this file by its path, with the rewards' own paths as arguments.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from recipes.python_files import awaited, find_beside, loaded, name_of, split_function

_functions: dict[str, Callable[..., Any]] = {}
_loading = threading.Lock()


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Any = None,
    *,
    rewards: Sequence[str],
    weights: Sequence[float],
    **kwargs: Any,
) -> dict[str, Any]:
    """Return the weighted sum of the rewards as `score`, and each reward's own score as `reward/<name>`.

    Args:
        rewards: `file.py`, whose function is `compute_score`, or `file.py:function`.
        weights: one for each reward.
        kwargs: further arguments; each reward gets those that it names.

    Returns:
        `accuracy`, and `acc`, its other name, are those of the first reward that reports one, or else the first
        reward's score, as verl has it for a reward that is a number. `reason` is there where a reward reports one.
    """
    total, own, said = 0.0, {}, []
    for location, weight in zip(rewards, weights, strict=True):
        function = function_of(location)
        given = arguments_of(function, kwargs)
        result = function(
            data_source=data_source,
            solution_str=solution_str,
            ground_truth=ground_truth,
            extra_info=extra_info,
            **given,
        )
        if inspect.iscoroutine(result):
            result = awaited(result)
        parts = result if isinstance(result, Mapping) else {"score": result}
        value = float(parts["score"])
        total += float(weight) * value
        own[f"reward/{name_of(location)}"] = value
        said.append(parts)
    reported = [parts[key] for parts in said for key in ("accuracy", "acc") if parts.get(key) is not None]
    accuracy = float(reported[0] if reported else said[0]["score"])
    reasons = [parts["reason"] for parts in said if "reason" in parts]
    return {"score": total, "acc": accuracy, "accuracy": accuracy, **own} | ({"reason": reasons[0]} if reasons else {})


def function_of(location: str) -> Callable[..., Any]:
    """Return a reward function; its file is loaded once, and imports what lies beside it."""
    with _loading:
        if location not in _functions:
            path, name = split_function(location)
            find_beside(path)
            module = loaded(path, f"reward_{len(_functions)}_{Path(path).stem}")
            _functions[location] = getattr(module, name or "compute_score")
        return _functions[location]


def arguments_of(function: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the arguments that a function names, or all where it takes any."""
    parameters = inspect.signature(function).parameters.values()
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters):
        return dict(arguments)
    named = {each.name for each in parameters}
    return {name: value for name, value in arguments.items() if name in named}
