"""Several rewards, added up by weights; each is a metric of its own, `reward/<name>`.

Trainers load this file by its path, with the rewards' own paths as arguments.
"""

import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from recipes.paths import reward_name
from recipes.rewards.contract import Answer
from recipes.rewards.function import Call, RewardFunction, load_function
from recipes.rewards.loading import find_function, load_reward

_functions: dict[str, RewardFunction] = {}
_loading = threading.Lock()


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Any = None,
    *,
    rewards: Sequence[str],
    weights: Sequence[float],
    easyr1_length: int | None = None,
    **kwargs: Any,
) -> dict[str, Any]:
    """The weighted sum of the rewards as `score`, and each reward's own score as `reward/<name>`.

    Accuracy and `reason` are those of the first reward that states them. Raises RewardError where a reward raises or
    breaks the contract.

    Args:
        rewards: `file.py`, whose function is `compute_score`, or `file.py:function`.
        easyr1_length: EasyR1's `response_length`, in tokens.
        kwargs: further arguments; each reward gets those that it names.
    """
    call = Call(data_source, solution_str, ground_truth, extra_info, length=easyr1_length)
    total, own, answers = 0.0, dict[str, Any](), []
    for location, weight in zip(rewards, weights, strict=True):
        answer = function_of(location, kwargs).score(call)
        total += float(weight) * answer.score
        own[f"reward/{reward_name(location)}"] = answer.score
        answers.append(answer)
    accuracy = next((answer.accuracy for answer in answers if answer.accuracy is not None), None)
    if reasons := [answer.parts["reason"] for answer in answers if "reason" in answer.parts]:
        own["reason"] = next((str(reason) for reason in reasons if reason is not None), None)
    return Answer(total, accuracy, own).as_verl()


def function_of(location: str, arguments: Mapping[str, Any]) -> RewardFunction:
    """A reward with those of the arguments that it names; its file is loaded once."""
    with _loading:
        if location not in _functions:
            module = load_reward(location)
            named = arguments_of(find_function(module, location), arguments)
            _functions[location] = load_function(location, named, module=module)
            _functions[location].contract.one_kind = False  # of its parts, the sum hands on the reason alone, as text
        return _functions[location]


def arguments_of(function: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the arguments that a function names, or all if it takes `**` arguments."""
    parameters = inspect.signature(function).parameters.values()
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters):
        return dict(arguments)
    named = {each.name for each in parameters}
    return {name: value for name, value in arguments.items() if name in named}
