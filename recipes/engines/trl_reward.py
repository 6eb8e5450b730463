"""A reward function of TRL's as one of verl's: `def f(completions, **columns) -> list`, plain or async.

TRL calls a reward with lists: `prompts`, `completions`, and every further column of the data. A completion is a list of
messages where the prompt is one, a text otherwise. Here each list has one element, that of the response to judge.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any

Function = Callable[..., Any]


def is_of_trl(function: Function) -> bool:
    """Return whether a reward takes `completions`, as TRL's do."""
    return "completions" in inspect.signature(function).parameters


def as_verl(function: Function) -> Function:
    """A function of TRL's form in verl's, plain or async as it is; `None` in its answer, not applicable, counts 0."""
    parameters = inspect.signature(function).parameters.values()
    takes_any = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters)
    names = {each.name for each in parameters}

    def lists(response: str, truth: Any, extra: Any, source: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        if not isinstance(extra, Mapping) or "asked" not in extra:
            raise ValueError("a reward of TRL's form needs rows that the custom-task kit made, and verl: ENGINE=verl")
        prompt = json.loads(extra["asked"])
        completion = response if isinstance(prompt, str) else [{"role": "assistant", "content": response}]
        row = {"data_source": source, "ground_truth": truth, "solution": extra["solution"], "id": extra["id"]}
        row |= json.loads(extra["fields"] or "{}")
        given = {**row, "prompts": prompt, "completions": completion}
        return {name: [value] for name, value in given.items() if takes_any or name in names} | dict(arguments)

    if inspect.iscoroutinefunction(function):

        async def judge_async(
            data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None, **arguments: Any
        ) -> float:
            return _score(await function(**lists(solution_str, ground_truth, extra_info, data_source, arguments)))

        return judge_async

    def judge(
        data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None, **arguments: Any
    ) -> float:
        return _score(function(**lists(solution_str, ground_truth, extra_info, data_source, arguments)))

    return judge


def _score(answers: Any) -> Any:
    if not isinstance(answers, list | tuple) or len(answers) != 1:
        raise TypeError(f"a reward of TRL's form returns a list with a number for each completion, not {answers!r}")
    return 0.0 if answers[0] is None else answers[0]
