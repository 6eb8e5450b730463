"""What of a reward's result says that a response is right, and metrics of rewards that the engines do not log."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

REWARD_STD = "reward_std"
"""Mean over groups of the standard deviation of a group's scores, with n - 1 as the advantage has it; TRL's name."""
PART = "reward/"
"""Begins the name of each of several rewards, in a reward's result and in metrics: the mean over the responses."""


FULL_MARKS = 1.0 - 1e-9
"""A reward may be a sum such as 0.1 + 0.2 + 0.7, which rounding leaves a little below 1."""


def is_right(result: Mapping[str, Any] | float) -> bool:
    """Return whether a response is right. Training and evaluation both use this definition.

    Args:
        result: what a reward returned, or a line of verl's dump of rollouts. `accuracy` (verl's `acc`) decides; if
            neither is there, `score` does. It may also be the score itself.

    Raises:
        KeyError: the result has none of the three.
    """
    if not isinstance(result, Mapping):
        return float(result) >= FULL_MARKS
    key = next((key for key in ("accuracy", "acc") if result.get(key) is not None), "score")
    return float(result[key]) >= FULL_MARKS


def logged_parts(metrics: Iterable[str]) -> list[str]:
    """Return the metrics of several rewards among a step's.

    EasyR1 logs every part of a reward's result as `reward/<part>`; there, these are `reward/reward/<name>` as well.
    """
    names = [name for name in metrics if name.startswith(PART)]
    return [name for name in names if PART + name in names] if f"{PART}overall" in names else names


def reward_metrics(
    groups: Iterable[Any], scores: Iterable[float], results: Sequence[Mapping[str, Any]]
) -> dict[str, float]:
    """Return the metrics of one step.

    Args:
        groups: of each response, what its group has in common.
        scores: what training sees of each.
        results: what the reward returned for each.
    """
    of_group: dict[Any, list[float]] = defaultdict(list)
    for group, score in zip(groups, scores, strict=True):
        of_group[group].append(score)
    spreads = [stdev(values) for values in of_group.values() if len(values) > 1]
    names = dict.fromkeys(name for result in results for name in result if name.startswith(PART))
    means = {name: fmean(float(result[name]) for result in results if name in result) for name in names}
    return means | ({REWARD_STD: fmean(spreads)} if spreads else {})
