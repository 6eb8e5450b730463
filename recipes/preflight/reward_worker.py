"""Tries a reward file on a few rows: reads a question on standard input, prints one verdict. See `reward`."""

from __future__ import annotations

import inspect
import json
import math
import numbers
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from recipes.errors import RecipeError
from recipes.tasks.rewards import load_reward

DEFAULT_FUNCTION = {"verl": "compute_score", "easyr1": "compute_score_batch"}
KEY = {"verl": "score", "easyr1": "overall"}


def responses(row: dict[str, Any]) -> list[str]:
    """What a policy may say: nothing, nonsense, half an answer, and the truth in the usual wrappings."""
    truth = str(row.get("ground_truth"))
    solution = str((row.get("extra_info") or {}).get("solution", truth))
    return [
        "",
        "\u00e9\u4e2d \\frac{ <answer>",
        f"<think>so</think>\n<answer>{solution}</answer>",
        f"The answer is \\boxed{{{truth}}}.",
        truth,
    ]


def try_reward(question: dict[str, Any]) -> None:
    """Raise RecipeError for the first answer of the reward that the trainer could not use."""
    engine, location = question["engine"], question["location"]
    path, _, named = location.partition(":")
    name = named or DEFAULT_FUNCTION[engine]
    module = load_reward(location)
    function = getattr(module, name, None)
    if not callable(function):
        have = [key for key, value in vars(module).items() if inspect.isfunction(value) and not key.startswith("_")]
        raise RecipeError(
            f"the reward file has no function {name} (it has {', '.join(have) or 'none'})",
            where=path,
            fix=f"define {name}, or name another as file.py:function",
        )
    seen: set[str] | None = None
    for row in question["rows"]:
        for response in responses(row):
            result = _call(function, engine, row, response, question["kwargs"], path)
            keys = _checked(result, engine, f"{path}, {name}, for the response {response[:60]!r}")
            if seen is not None and keys != seen:
                raise RecipeError(
                    f"the reward answers with different keys: {sorted(keys ^ seen)} are not in every answer",
                    where=f"{path}, {name}",
                    fix="put the same keys into every answer; the trainer stacks them",
                )
            seen = keys


def _call(function: Callable, engine: str, row: dict, response: str, kwargs: dict, path: str) -> Any:
    try:
        if engine == "easyr1":
            entry = {"response": response, "response_length": len(response), "ground_truth": row["ground_truth"]}
            results = function([entry], **kwargs)
            return results[0] if isinstance(results, list) and len(results) == 1 else results
        return function(
            data_source=row["data_source"],
            solution_str=response,
            ground_truth=row["ground_truth"],
            extra_info=row["extra_info"],
            **kwargs,
        )
    except Exception as error:  # allowed: whatever a user's reward raises is the user's to see
        frames = [
            frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).name == Path(path).name
        ]
        line = f":{frames[-1].lineno}" if frames else ""
        raise RecipeError(
            f"the reward raises {type(error).__name__}: {error}",
            where=f"{path}{line}, for the response {response[:60]!r}",
            fix="mend it; a reward must judge any text",
        ) from error


def _checked(result: Any, engine: str, where: str) -> set[str]:
    key = KEY[engine]
    if isinstance(result, dict):
        if key not in result:
            raise RecipeError(
                f"the reward's answer has no {key!r}: {sorted(map(str, result))}",
                where=where,
                fix=f"put the score under {key!r}",
            )
        score, keys = result[key], {str(name) for name in result}
    elif engine == "verl":
        score, keys = result, set()
    else:
        raise RecipeError(
            f"the reward answers with {type(result).__name__}, not one dict a response",
            where=where,
            fix="return a list of dicts",
        )
    if not isinstance(score, numbers.Real) or not math.isfinite(score):
        raise RecipeError(f"the reward's score is {score!r}, not a finite number", where=where, fix="return a float")
    return keys


def main() -> None:
    """Answer one question."""
    question = json.load(sys.stdin)
    printed = sys.stdout
    sys.stdout = sys.stderr  # a reward that prints must not spoil the verdict
    try:
        try_reward(question)
        verdict = {"verdict": "fine"}
    except RecipeError as error:
        verdict = {"verdict": "wrong", "what": error.what, "where": error.where, "fix": error.fix}
    print(json.dumps(verdict), file=printed)


if __name__ == "__main__":
    main()
