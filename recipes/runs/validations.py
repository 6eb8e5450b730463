"""Validations of runs: the mean with its interval, and two of them paired."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from recipes.errors import counted
from recipes.runs.responses import NO_IDS, Dump, Response
from recipes.statistics import Interval, McNemar, mean_with_interval, paired_difference


@dataclass(frozen=True)
class Paired:
    """Two validations on the questions that both answered: rows with one id, one prompt and one ground truth.

    Attributes:
        questions: how many those are.
        difference: second minus first.
        mcnemar: questions won and lost; the exact test for single answers that are right or wrong, otherwise those
            whose mean rose or fell, and the p-value of flipped signs.
        others: ids that both have with another prompt or ground truth.
    """

    questions: int
    difference: Interval
    mcnemar: McNemar
    others: int = 0


def mean_of(dump: Dump) -> Interval:
    """The mean of what the dump's `measure` says, with an interval over the different questions."""
    ids = [group[0].row_id for group in dump.groups.values()] if dump.has_ids else None
    interval = mean_with_interval(dump.means, bounds=dump.bounds, clusters=ids)
    assert interval is not None  # a dump has responses
    return interval


def pair(first: Dump, second: Dump) -> Paired | None:
    """Compare two validations; None where they cannot be paired, as `why_not` tells."""
    same, others = _common(first, second)
    if first.measure != second.measure or not same:
        return None
    before, after = ([_mean(dump.answers[row]) for row in same] for dump in (first, second))
    test = paired_difference(before, after, bounds=first.bounds)
    return Paired(len(same), test.difference, McNemar(test.won, test.lost, test.p_value), others)


def why_not(first: Dump, second: Dump) -> str:
    """The reason why two validations cannot be paired, in a sentence."""
    for dump in (first, second):
        if not dump.has_ids:
            return f"{dump.file.parent.parent.name}, step {dump.file.stem}: {NO_IDS}"
    if first.measure != second.measure:
        return f"one has a {first.measure} and the other a {second.measure}: their rewards differ"
    _, others = _common(first, second)
    if others:
        return f"the {counted(others, 'row')} with the same id have another prompt or ground truth: other questions"
    return "the validations share no question"


def _common(first: Dump, second: Dump) -> tuple[list[str], int]:
    """Ids of the questions that both have, and the number of ids that stand for different questions."""
    both = [row for row in first.answers if row in second.answers]
    same = [row for row in both if _question(first.answers[row]) == _question(second.answers[row])]
    return same, len(both) - len(same)


def _question(answers: Sequence[Response]) -> tuple[str, str]:
    return answers[0].prompt, answers[0].truth


def _mean(answers: Sequence[Response]) -> float:
    return fmean(response.value for response in answers)
