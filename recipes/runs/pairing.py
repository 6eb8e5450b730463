"""Two validations of the same questions: which were won and which were lost, by the ids of rows and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from recipes.runs.dumps import NO_IDS, Dump, Response
from recipes.statistics import (
    Interval,
    McNemar,
    difference_of_shares,
    mcnemar,
    mean_with_interval,
    paired_p_value,
)


@dataclass(frozen=True)
class Paired:
    """Two validations on the questions that both answered.

    Attributes:
        questions: how many those are.
        difference: second minus first.
        mcnemar: questions won and lost; with several samples a question, those whose share of right ones rose or fell,
            and the p-value of flipped signs.
    """

    questions: int
    difference: Interval
    mcnemar: McNemar


def accuracy(dump: Dump) -> Interval:
    """The share of right responses, with an interval over the questions (Wilson's for one sample each)."""
    interval = mean_with_interval([_share(group) for group in dump.groups.values()], bounds=(0.0, 1.0))
    assert interval is not None  # a dump has responses
    return interval


def pair(first: Dump, second: Dump) -> Paired | None:
    """Compare two validations; None where they have no question in common, as `why_not` tells."""
    before, after = first.answers, second.answers
    common = [row for row in before if row in after]
    if not common:
        return None
    changes = [_share(after[row]) - _share(before[row]) for row in common]
    won, lost = sum(change > 0 for change in changes), sum(change < 0 for change in changes)
    if all(len(before[row]) == len(after[row]) == 1 for row in common):
        return Paired(len(common), difference_of_shares(won, lost, len(common)), mcnemar(won, lost))
    difference = mean_with_interval(changes, bounds=(-1.0, 1.0))
    assert difference is not None
    return Paired(len(common), difference, McNemar(won, lost, paired_p_value(changes)))


def why_not(first: Dump, second: Dump) -> str:
    """The reason why two validations cannot be paired, in a sentence."""
    for dump in (first, second):
        if not dump.has_ids:
            return f"{dump.file.parent.parent.name}, step {dump.file.stem}: {NO_IDS}"
    return "the validations share no question"


def _share(group: Sequence[Response]) -> float:
    return sum(response.right for response in group) / len(group)
