"""Metrics of rewards that the engines do not log: the spread within groups, and the mean of each of several rewards."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

REWARD_STD = "reward_std"
"""Mean over groups of the standard deviation of a group's scores, with n - 1 as the advantage has it; TRL's name."""
PART = "reward/"
"""Begins the name of each of several rewards, in a reward's result and in metrics: the mean over the responses."""


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
