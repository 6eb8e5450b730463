"""Metrics of a step's rewards: spread within groups, accuracy, each of several rewards; the filter's value."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from recipes.rewards.contract import ACCURACY, SAME, stated_accuracy

REWARD_STD = "reward_std"
"""Mean over groups of the sample standard deviation of a group's scores (n - 1, as in the advantage); TRL's name."""
ZERO_VARIANCE = "frac_reward_zero_std"
"""Share of groups whose scores are all equal, so that every advantage is zero; TRL's name."""
TRAINING_ACCURACY = "reward_accuracy"
"""Mean accuracy of a step's training responses, where the reward states one."""
CALLS, FAILED_CALLS = "tools/calls", "tools/failed"
"""Mean number of a response's calls that were run, and the share of these that failed."""
MODEL_TURNS, CUT_BY_TURNS = "tools/turns", "tools/cut"
"""Mean number of the model's turns in a response, and the share of responses that ended by the limit of turns."""
PART = "reward/"
"""Prefix of a reward's name where a recipe has several rewards. In a result, `reward/<name>` is the reward's value; in
the metrics, it is the mean over the responses."""


def filter_metric(filter_key: str, parts: Mapping[str, Any]) -> str:
    """The value by which dynamic sampling compares a group: `filter_key`, or the score where no accuracy is stated."""
    if filter_key not in ACCURACY:
        return filter_key
    return next((name for name in ACCURACY if name in parts), "score")


def logged_parts(metrics: Iterable[str]) -> list[str]:
    """The names of a step's metrics that are `reward/<name>`: one for each reward of a recipe with several.

    EasyR1 logs every part of a result as `reward/<part>`, and so what is a reward's own as `reward/reward/<name>` too.
    """
    names = [name for name in metrics if name.startswith(PART)]
    return [name for name in names if PART + name in names] if f"{PART}overall" in names else names


def numbers_of(parts: Mapping[str, Any]) -> dict[str, float]:
    """The parts `reward/<name>` that are numbers."""
    return {k: float(v) for k, v in parts.items() if k.startswith(PART) and isinstance(v, int | float)}


def is_flat(scores: Iterable[float]) -> bool:
    """Return whether a group has zero variance: all its scores are equal."""
    values = list(scores)
    return max(values) - min(values) < SAME


def reward_metrics(
    groups: Iterable[Any], scores: Iterable[float], results: Sequence[Mapping[str, Any]]
) -> dict[str, float]:
    """The metrics of one step: for each response its group's id, the score that training uses, the reward's result."""
    of_group: dict[Any, list[float]] = defaultdict(list)
    for group, score in zip(groups, scores, strict=True):
        of_group[group].append(score)
    compared = [values for values in of_group.values() if len(values) > 1]
    shown: dict[str, list[float]] = defaultdict(list)
    for result in results:
        for name, value in numbers_of(result).items():
            shown[name].append(value)
    metrics = {name: fmean(values) for name, values in shown.items()}
    if compared:
        metrics |= {REWARD_STD: fmean(map(stdev, compared)), ZERO_VARIANCE: fmean(map(is_flat, compared))}
    metrics |= tool_metrics([result for result in results if "tool_calls" in result])
    accuracies = [accuracy for result in results if (accuracy := stated_accuracy(result)) is not None]
    return metrics | ({TRAINING_ACCURACY: fmean(accuracies)} if accuracies else {})


def tool_metrics(results: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The metrics of a step's responses with tools, as `dumps.CONVERSATION` describes them; none without any."""
    if not results:
        return {}
    calls, failed = (sum(result[name] for result in results) for name in ("tool_calls", "failed_calls"))
    return {
        CALLS: calls / len(results),
        FAILED_CALLS: failed / max(1, calls),
        MODEL_TURNS: fmean(result["model_turns"] for result in results),
        CUT_BY_TURNS: fmean(result["ended"] == "turns" for result in results),
    }
