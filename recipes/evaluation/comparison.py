"""Base against trained on the same questions: one primary test decides; further tests and pass@k are secondary.

The primary test is paired and on greedy answers: McNemar's exact test if every accuracy is 0 or 1 and no question
repeats, otherwise a permutation test of the differences. The further tests are on the sampled answers: pass@k for
k = 1, 2, 4, ... n and the mean accuracy where it is not pass@1, or the mean score; their p-values are adjusted for the
number of tests (Holm).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from recipes.responses.measures import Measures, main_metric, metric_of
from recipes.statistics import NOISE, SIGNIFICANCE, Interval, Paired, holm, paired_difference

# If fewer questions than this changed between right and wrong, McNemar's p-value cannot be under 0.05.
LEAST_CHANGED = 6


@dataclass(frozen=True)
class Headline:
    """The conclusion at the top of the report; `level` is "good", "weak", "bad" or "plain"."""

    level: str
    text: str


@dataclass(frozen=True)
class Comparison:
    """Two models on the same questions."""

    measure: str  # what the primary test compares: `main_metric` of the greedy answers
    primary: Paired  # the primary test, on the greedy answers of both models
    won: list[int]  # numbers of the rows whose greedy value rose
    lost: list[int]  # numbers of the rows whose greedy value fell
    differences: dict[str, dict[str, Interval]]  # pass ("greedy", "sampled") -> metric -> trained minus base
    # Metric of the sampled pass -> p-value of a further test, adjusted for the number of tests.
    p_values: dict[str, float]
    headline: Headline  # the conclusion


def compare(passes: Mapping[str, Measures], rows: Sequence[int]) -> Comparison:
    """Compare two models.

    Args:
        passes: base_greedy, base_sampled, trained_greedy and trained_sampled, of the same questions in the same order.
        rows: the row number of each question.
    """
    greedy = passes["base_greedy"], passes["trained_greedy"]
    sampled = passes["base_sampled"], passes["trained_sampled"]
    measure, further = (main_metric(each.summary for each in pair) for pair in (greedy, sampled))
    primary = _paired(*greedy, measure)
    numbers, changes = np.asarray(rows), greedy[1].columns[measure] - greedy[0].columns[measure]
    tested = list(dict.fromkeys([further, *(name for name in sampled[0].columns if name.startswith("pass@"))]))
    p_values = dict(zip(tested, holm([_paired(*sampled, name).p_value for name in tested]), strict=True))
    differences = {
        "greedy": _differences(*greedy) | {measure: primary.difference},
        "sampled": _differences(*sampled),
    }
    return Comparison(
        measure=measure,
        primary=primary,
        won=numbers[changes > NOISE].tolist(),
        lost=numbers[changes < -NOISE].tolist(),
        differences=differences,
        p_values=p_values,
        headline=_headline(measure, primary, {name: differences["sampled"][name] for name in tested}, p_values),
    )


def _paired(base: Measures, trained: Measures, name: str) -> Paired:
    columns = base.columns[name], trained.columns[name]
    return paired_difference(*columns, bounds=metric_of(name).bounds, clusters=base.clusters, seed=base.seed)


def _differences(base: Measures, trained: Measures) -> dict[str, Interval]:
    """Mean of (trained - base) with a paired interval, for each metric that both models have."""
    differences = {}
    for name in (name for name in base.columns if name in trained.columns):
        bounds = metric_of(name).bounds
        span = bounds and (bounds[0] - bounds[1], bounds[1] - bounds[0])
        differences[name] = base.interval(trained.columns[name] - base.columns[name], span)
    return differences


def _headline(
    measure: str, primary: Paired, further: Mapping[str, Interval], p_values: Mapping[str, float]
) -> Headline:
    """The primary test decides; the significant ones of the `further` differences (by metric) are listed after it."""
    change = metric_of(measure).cell(primary.difference, difference=True)
    name = "the mean score of greedy answers" if measure == "mean_score" else f"greedy {measure}"
    repeats = "" if primary.different == primary.questions else f" over {primary.different} different prompts"
    figures = (
        f"{name} changed by {change.value}{repeats} ({change.ends}; {primary.won} won, {primary.lost} lost, "
        f"{primary.test} p = {primary.p_value:.2g})"
    )
    if primary.p_value >= SIGNIFICANCE:
        level, text = "weak", f"No difference is shown: {figures}."
        if 0 < primary.won + primary.lost < LEAST_CHANGED:
            text += f" With fewer than {LEAST_CHANGED} changed questions this test cannot show one: ask more."
    else:
        level, word = ("good", "better") if primary.difference.value > 0 else ("bad", "worse")
        text = f"The trained model is {word}: {figures}."
    holding = [
        f"{name.replace('_', ' ')} {metric_of(name).cell(further[name], difference=True).value}"
        for name, p in p_values.items()
        if p < SIGNIFICANCE
    ]
    further_text = f"{', '.join(holding)} hold" if holding else "no change holds"
    return Headline(level, f"{text} Further tests on sampled answers, adjusted for their number: {further_text}.")
