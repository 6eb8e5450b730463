"""Several rewards, added up by weights; each is a metric of its own, `reward/<name>`.

Standalone: trainers load this file by its path, with the rewards' own paths as arguments.
"""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

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
            result = asyncio.run(result)
        parts = result if isinstance(result, Mapping) else {"score": result}
        value = float(parts["score"])
        total += float(weight) * value
        own[f"reward/{name_of(location)}"] = value
        said.append(parts)
    reported = [parts[key] for parts in said for key in ("accuracy", "acc") if parts.get(key) is not None]
    accuracy = float(reported[0] if reported else said[0]["score"])
    reasons = [parts["reason"] for parts in said if "reason" in parts]
    return {"score": total, "acc": accuracy, "accuracy": accuracy, **own} | ({"reason": reasons[0]} if reasons else {})


def name_of(location: str) -> str:
    """Return a reward's name in metrics: its function's where that is given, else its file's."""
    path, function = split_location(location)
    return function or Path(path).stem


def split_location(location: str) -> tuple[str, str]:
    """Return file and function of `file.py:function`; the function is empty where it is not given."""
    path, colon, name = location.rpartition(":")
    return (path, name) if colon and name.isidentifier() and path else (location, "")


def function_of(location: str) -> Callable[..., Any]:
    """Return a reward function; its file is loaded once, and imports what lies beside it."""
    with _loading:
        if location not in _functions:
            path, name = split_location(location)
            folder = str(Path(path).resolve().parent)
            if folder not in sys.path:
                sys.path.append(folder)  # last, so that no helper takes the place of another program's module
            spec = importlib.util.spec_from_file_location(f"reward_{len(_functions)}_{Path(path).stem}", path)
            if spec is None or spec.loader is None:
                raise ImportError(f"{path} is not a Python file")
            module = importlib.util.module_from_spec(spec)
            sys.modules[spec.name] = module  # dataclasses and pickle look a module up by its name
            spec.loader.exec_module(module)
            _functions[location] = getattr(module, name or "compute_score")
        return _functions[location]


def arguments_of(function: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the arguments that a function names, or all where it takes any."""
    parameters = inspect.signature(function).parameters.values()
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters):
        return dict(arguments)
    named = {each.name for each in parameters}
    return {name: value for name, value in arguments.items() if name in named}
