"""Base against trained on the same questions: one primary test, further tests below it, and what pass@k says.

The primary test is paired and on greedy answers, and alone decides the headline: McNemar's exact test where each is
right or wrong, otherwise a permutation test of the differences. The further tests are on the sampled answers, on pass@k
for k = 1, 2, 4, ... n, or on the mean score; their p-values are adjusted for their number (Holm).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from recipes.evaluation.metrics import Collector, metric_of
from recipes.statistics import SIGNIFICANCE, Interval, Paired, holm, paired_difference

# With fewer questions that changed sides than this, McNemar's p-value cannot be under 0.05.
LEAST_CHANGED = 6


@dataclass(frozen=True)
class Headline:
    """The one sentence at the top; `level` is "good", "weak", "bad" or "plain"."""

    level: str
    text: str


@dataclass(frozen=True)
class Primary:
    """Greedy answers of both models.

    Attributes:
        measure: "pass@1", or "mean_score" where the reward states no accuracy.
        won, lost: rows whose value rose and fell.
        both_right, both_wrong: questions; None where the reward states no accuracy.
    """

    measure: str
    paired: Paired
    won: list[int]
    lost: list[int]
    both_right: int | None
    both_wrong: int | None

    @property
    def verdict(self) -> str:
        """ "good" or "bad" where the test shows a difference, else "weak"."""
        if self.paired.p_value >= SIGNIFICANCE:
            return "weak"
        return "good" if self.paired.difference.value > 0 else "bad"


@dataclass(frozen=True)
class Further:
    """A figure of the sampled answers before and after, paired by question.

    Attributes:
        name: of the metric, such as pass@4.
        p_value: of the mean difference; `p_holm`: the same, adjusted for the number of tests.
    """

    name: str
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
    """Everything that is said of two models; `differences` are trained minus base by pass and metric.

    `reach` is None where the reward states no accuracy.
    """

    primary: Primary
    further: list[Further]
    reach: Reach | None
    differences: dict[str, dict[str, Interval]]
    headline: Headline


def compare(passes: Mapping[str, Collector], rows: Sequence[int]) -> Comparison:
    """Compare two models.

    Args:
        passes: base_greedy, base_sampled, trained_greedy and trained_sampled, of the same questions in the same order.
        rows: those questions' rows.
    """
    greedy = passes["base_greedy"], passes["trained_greedy"]
    sampled = passes["base_sampled"], passes["trained_sampled"]
    accuracies = all(each.measure == "accuracy" for each in (*greedy, *sampled))
    primary = _primary(*greedy, rows, "pass@1" if accuracies else "mean_score")
    differences = {
        "greedy": _differences(*greedy) | {primary.measure: primary.paired.difference},
        "sampled": _differences(*sampled),
    }
    columns = sampled[0].columns
    tested = [name for name in columns if name.startswith("pass@")] if accuracies else ["mean_score"]
    further = _further(*sampled, tested, differences["sampled"])
    reach = _reach(*sampled, rows, further) if accuracies else None
    return Comparison(primary, further, reach, differences, conclude(primary, further, reach))


def conclude(primary: Primary, further: list[Further], reach: Reach | None) -> Headline:
    """The headline: the primary test decides, the further tests are told after it."""
    paired, level = primary.paired, primary.verdict
    factor, unit = (100, " points") if primary.measure == "pass@1" else (1, "")
    difference = paired.difference
    span = f"95% interval {factor * (difference.low or 0):+.3g} to {factor * (difference.high or 0):+.3g}"
    name = "greedy pass@1" if primary.measure == "pass@1" else "the mean score of greedy answers"
    repeats = "" if paired.different == paired.questions else f" over {paired.different} different prompts"
    figures = (
        f"{name} changed by {factor * difference.value:+.3g}{unit}{repeats} "
        f"({span}; {paired.won} won, {paired.lost} lost, {paired.test} p = {paired.p_value:.2g})"
    )
    if level == "weak":
        text = f"No difference is shown: {figures}."
        if 0 < paired.won + paired.lost < LEAST_CHANGED:
            text += f" With fewer than {LEAST_CHANGED} changed questions this test cannot show one: ask more."
    else:
        text = f"The trained model is {'better' if level == 'good' else 'worse'}: {figures}."
    holding = [
        f"{each.name.replace('_', ' ')} {factor * each.difference.value:+.3g}{unit}" for each in further if each.change
    ]
    count = f"{len(further)} further tests on sampled answers" if len(further) > 1 else "the test on sampled answers"
    outcome = f"{', '.join(holding)} {'holds' if len(holding) == 1 else 'hold'}" if holding else "no change holds"
    after = " after Holm's correction" if len(further) > 1 and holding else ""
    return Headline(level, f"{text} Of {count}: {outcome}{after}.{f' {reach.text}' if reach else ''}")


def _primary(base: Collector, trained: Collector, rows: Sequence[int], name: str) -> Primary:
    before, after = base.columns[name], trained.columns[name]
    accuracies = name == "pass@1"
    paired = paired_difference(
        before, after, bounds=metric_of(name).bounds, clusters=base.clusters, seed=base.sampling.seed
    )
    won, lost = _changed(before, after, rows)
    right = int(((before == 1.0) & (after == 1.0)).sum()) if accuracies else None
    wrong = int(((before == 0.0) & (after == 0.0)).sum()) if accuracies else None
    return Primary(name, paired, won, lost, right, wrong)


def _changed(before: np.ndarray, after: np.ndarray, rows: Sequence[int]) -> tuple[list[int], list[int]]:
    """Rows whose value rose, and rows whose value fell."""
    numbers = np.asarray(rows)
    return numbers[after > before].tolist(), numbers[before > after].tolist()


def _further(
    base: Collector, trained: Collector, names: list[str], differences: Mapping[str, Interval]
) -> list[Further]:
    p_values = [
        paired_difference(
            base.columns[name], trained.columns[name], clusters=base.clusters, seed=base.sampling.seed
        ).p_value
        for name in names
    ]
    before, after = base.summary.figures, trained.summary.figures
    return [
        Further(name, before[name], after[name], differences[name], p_value, p_holm)
        for name, p_value, p_holm in zip(names, p_values, holm(p_values), strict=True)
    ]


def _reach(base: Collector, trained: Collector, rows: Sequence[int], further: list[Further]) -> Reach:
    n = base.sampling.n
    gained, missed = _changed(base.columns[f"pass@{n}"], trained.columns[f"pass@{n}"], rows)
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


def _differences(base: Collector, trained: Collector) -> dict[str, Interval]:
    """Mean of (trained - base) with a paired interval, for each metric that both models have."""
    differences = {}
    for name in (name for name in base.columns if name in trained.columns):
        bounds = metric_of(name).bounds
        span = bounds and (bounds[0] - bounds[1], bounds[1] - bounds[0])
        differences[name] = base.interval(name, trained.columns[name] - base.columns[name], span)
    return differences
