"""Base against trained on the same questions: one primary test, further tests below it, and what pass@k says.

The primary test is exact, paired and on greedy answers (McNemar): it alone decides the headline. The further tests are
on pass@k of the sampled answers, k = 1, 2, 4, ... n; their p-values are adjusted for their number (Holm).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from recipes.evaluation.metrics import Collector, pass_name
from recipes.statistics import (
    SIGNIFICANCE,
    Interval,
    McNemar,
    difference_of_shares,
    holm,
    ks_for,
    mcnemar,
    mean_with_interval,
    paired_p_value,
)

# With fewer questions that changed sides than this, McNemar's p-value cannot be under 0.05.
LEAST_CHANGED = 6
T = TypeVar("T")


@dataclass(frozen=True)
class Headline:
    """The one sentence at the top; `level` is "good", "weak", "bad" or "plain"."""

    level: str
    text: str


@dataclass(frozen=True)
class Primary:
    """Greedy answers of both models; `won` and `lost` are rows that only the trained or only the base model solves."""

    difference: Interval
    mcnemar: McNemar
    won: list[int]
    lost: list[int]
    both_right: int
    both_wrong: int


@dataclass(frozen=True)
class PassAtK:
    """Pass@k of the sampled answers before and after, paired by question.

    Attributes:
        p_value: of the mean difference; `p_holm`: the same, adjusted for the number of k.
    """

    k: int
    base: Interval
    trained: Interval
    difference: Interval
    p_value: float
    p_holm: float

    @property
    def change(self) -> int:
        """1 or -1 where the difference holds after the adjustment, by its sign; else 0."""
        return 0 if self.p_holm >= SIGNIFICANCE else 1 if self.difference.value > 0 else -1


@dataclass(frozen=True)
class Reach:
    """Questions that n samples reach only before training, or only after it.

    Attributes:
        n: samples a question.
        newly_solved: rows that no sample of the base model solves, and at least one of the trained model does.
        no_longer_solved: the reverse.
        text: whether something new was learned, or what was there was made likelier.
    """

    n: int
    newly_solved: list[int]
    no_longer_solved: list[int]
    text: str


@dataclass(frozen=True)
class Comparison:
    """Everything that is said of two models; `differences` are trained minus base by pass and metric."""

    primary: Primary
    pass_at_k: list[PassAtK]
    reach: Reach
    differences: dict[str, dict[str, Interval | None]]
    headline: Headline


def compare(passes: Mapping[str, Collector], rows: Sequence[int]) -> Comparison:
    """Compare two models.

    Args:
        passes: base_greedy, base_sampled, trained_greedy and trained_sampled, of the same questions in the same order.
        rows: those questions' rows.
    """
    greedy = passes["base_greedy"], passes["trained_greedy"]
    sampled = passes["base_sampled"], passes["trained_sampled"]
    primary = _primary(*greedy, rows)
    differences = {
        "greedy": _differences(*greedy) | {pass_name(1): primary.difference},
        "sampled": _differences(*sampled),
    }
    further = _pass_at_k(*sampled, differences["sampled"])
    reach = _reach(*sampled, rows, further)
    return Comparison(primary, further, reach, differences, conclude(primary, further, reach))


def conclude(primary: Primary, further: list[PassAtK], reach: Reach) -> Headline:
    """The headline: the primary test decides, the further tests are told after it."""
    test, difference = primary.mcnemar, primary.difference
    span = f"95% interval {100 * (difference.low or 0):+.1f} to {100 * (difference.high or 0):+.1f}"
    figures = (
        f"greedy pass@1 changed by {100 * difference.value:+.1f} points "
        f"({span}; {test.won} won, {test.lost} lost, McNemar p = {test.p_value:.2g})"
    )
    if test.p_value < SIGNIFICANCE:
        better = test.won > test.lost
        level, text = "good" if better else "bad", f"The trained model is {'better' if better else 'worse'}: {figures}."
    else:
        level, text = "weak", f"No difference is shown: {figures}."
        if 0 < test.won + test.lost < LEAST_CHANGED:
            text += f" With fewer than {LEAST_CHANGED} changed questions this test cannot show one: ask more."
    holding = [f"{pass_name(each.k)} {100 * each.difference.value:+.1f}" for each in further if each.change]
    count = f"{len(further)} further tests on sampled answers" if len(further) > 1 else "the test on sampled answers"
    outcome = f"{', '.join(holding)} points hold after Holm's correction" if holding else "none holds"
    return Headline(level, f"{text} Of {count}: {outcome}. {reach.text}")


def _changed(base: Collector, trained: Collector, rows: Sequence[int]) -> tuple[list[int], list[int]]:
    """Rows that only the trained model has a right answer to, and rows that only the base model has one to."""
    before, after = (np.asarray(each.right) > 0 for each in (base, trained))
    numbers = np.asarray(rows)
    return numbers[after & ~before].tolist(), numbers[before & ~after].tolist()


def _primary(base: Collector, trained: Collector, rows: Sequence[int]) -> Primary:
    won, lost = _changed(base, trained, rows)
    both_right = sum(base.right) - len(lost)
    return Primary(
        difference=difference_of_shares(len(won), len(lost), len(rows)),
        mcnemar=mcnemar(len(won), len(lost)),
        won=won,
        lost=lost,
        both_right=both_right,
        both_wrong=len(rows) - both_right - len(won) - len(lost),
    )


def _pass_at_k(base: Collector, trained: Collector, differences: dict[str, Interval | None]) -> list[PassAtK]:
    ks = ks_for(base.sampling.n)
    changes = [_of_all(trained.column(pass_name(k))) - _of_all(base.column(pass_name(k))) for k in ks]
    p_values = [paired_p_value(change, base.sampling.seed) for change in changes]
    return [
        PassAtK(
            k,
            _of_all(base.figures[pass_name(k)]),
            _of_all(trained.figures[pass_name(k)]),
            _of_all(differences[pass_name(k)]),
            p_value,
            p_holm,
        )
        for k, p_value, p_holm in zip(ks, p_values, holm(p_values), strict=True)
    ]


def _of_all(figure: T | None) -> T:
    """Return a figure that every question has: pass@k is one, because it needs nothing but the verdicts."""
    if figure is None:
        raise ValueError("a question has no pass@k")
    return figure


def _reach(base: Collector, trained: Collector, rows: Sequence[int], further: list[PassAtK]) -> Reach:
    n = base.sampling.n
    gained, missed = _changed(base, trained, rows)
    first, last = further[0].change, further[-1].change
    if n == 1:
        text = "One sample a question does not show whether something new was learned."
    elif last > 0:
        text = f"pass@{n} rose: the trained model solves questions that {n} samples of the base model do not reach."
    elif first > 0 and last < 0:
        text = f"pass@1 rose and pass@{n} fell: answers that the base model had became likelier, others were lost."
    elif first > 0:
        text = f"pass@1 rose and pass@{n} shows no change: answers that the base model already had became likelier."
    elif last < 0:
        text = f"pass@{n} fell: the trained model reaches fewer questions within {n} samples."
    else:
        text = f"Neither pass@1 nor pass@{n} of the sampled answers shows a gain."
    return Reach(n, gained, missed, text)


def _differences(base: Collector, trained: Collector) -> dict[str, Interval | None]:
    """Mean of (trained - base) for each metric with a paired interval; None where a question lacks the metric."""
    differences: dict[str, Interval | None] = {}
    for metric in base.metrics:
        before, after = base.column(metric.name), trained.column(metric.name)
        differences[metric.name] = None
        if before is not None and after is not None:
            bounds = metric.bounds and (metric.bounds[0] - metric.bounds[1], metric.bounds[1] - metric.bounds[0])
            differences[metric.name] = mean_with_interval(after - before, bounds=bounds, seed=base.sampling.seed)
    return differences
