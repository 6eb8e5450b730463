"""Conclusions from an evaluation's figures: on one model, on base against trained, and on the signal in a group.

docs/EVALUATION_DESIGN.md says which tests are made of which answers. The signal probe says how many groups have zero
variance, and which questions to keep.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from recipes.data.rows import read_rows, write_split
from recipes.errors import RecipeError
from recipes.evaluation.questions import Question
from recipes.responses.measures import Measures, Summary, main_metric, metric_of
from recipes.rewards.contract import is_right
from recipes.statistics import NOISE, SIGNIFICANCE, Interval, Paired, counted_questions, holm, paired_difference
from recipes.yaml_text import read

# If fewer questions than this changed between right and wrong, McNemar's p-value cannot be under 0.05.
LEAST_CHANGED = 6


@dataclass(frozen=True)
class Headline:
    """The conclusion at the top of the report; `level` is "good", "weak", "bad" or "plain"."""

    level: str
    text: str


def headline_of_one(passes: Mapping[str, Summary], n: int) -> Headline:
    """The figures of one model; `n` is the number of its sampled answers to a question."""
    sampled, greedy = passes["sampled"], passes["greedy"]
    main, mean = main_metric([greedy]), "accuracy" if greedy.measure == "accuracy" else "mean_score"
    first, more = metric_of(main).cell(greedy.figures[main]), metric_of(mean).cell(sampled.figures[mean])
    ends = f" ({first.ends})" if first.low else ""
    questions = counted_questions(sampled.questions, sampled.different)
    text = (
        f"Greedy {main.replace('_', ' ')} {first.value}{ends} over {questions}; {metric_of(mean).label.lower()} of "
        f"{n} sampled answers {more.value}."
    )
    return Headline("plain", text if greedy.measure == "accuracy" else f"{text} The reward states no accuracy.")


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
    """Compare base_greedy, base_sampled, trained_greedy and trained_sampled, of the same questions in the same order.

    One primary test is on the greedy answers; `rows` has the row number of each question.
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


@dataclass(frozen=True)
class Filtered:
    """Row counts of `--filter_out`: kept, dropped, and kept without a probe."""

    path: str
    kept: int
    dropped: int
    not_probed: int


def write_filtered(
    source: Path, target: Path, questions: Sequence[Question], measures: Measures, decided_by: dict[str, Any]
) -> Filtered:
    """Copy to `target` the rows of `source` that give a signal or were not probed.

    Its manifest lists the others, each with its reason, and what decided: "all right", "all wrong" (accuracy and score
    0), or "same score", which is equal partial credit or a reward without accuracy. Raises RecipeError if none is left.
    """
    dropped = {}
    for question, flat, figures in zip(questions, measures.flat, measures.questions, strict=True):
        if flat:
            right = figures.get("accuracy")
            wrong = right == figures["mean_score"] == 0.0
            dropped[question.row] = "all right" if is_right(right) else "all wrong" if wrong else "same score"
    total = pq.ParquetFile(source).metadata.num_rows
    if len(dropped) == total:
        what = "no question gives a signal, so nothing would be left"
        raise RecipeError(what, where="--filter_out", fix="read the recommendation")
    not_probed = total - len(questions)
    settings = {
        "filter": {"dropped": len(dropped), "not_probed": not_probed, "rows": dict(sorted(dropped.items()))},
        "probe": decided_by,
    }
    kept: Iterator[Any] = (record for row, record in enumerate(read_rows(source, at_once=1024)) if row not in dropped)
    facts, schema = {"source": str(source), "settings": settings}, pq.read_schema(source)
    written = write_split(target, kept, facts, schema)
    return Filtered(str(target), written.rows, len(dropped), not_probed)


RANGES = Path(__file__).with_name("verdicts.yaml")
"""Metric -> thresholds, and what to say of each range between them; read where a pass is judged."""
LEVELS = ("bad", "weak", "good", "weak", "bad")
TRUNCATION_HARMS = 0.10
FILTER_FROM = 0.30
FORMAT_FAILURES = 0.5
# Reason codes of the reward files that say "no answer could be read", as against "a wrong answer was read".
UNREAD = ("no_answer", "unparsable", "truncated", "too_long")


@dataclass(frozen=True)
class Verdict:
    """One figure's judgement: `level` is "good", "weak" or "bad"."""

    metric: str
    level: str
    text: str


@dataclass(frozen=True)
class Probe:
    """The signal probe's result."""

    verdicts: list[Verdict]  # one for each metric of `RANGES`; none where the reward states no accuracy
    prompts: int | None  # prompts a training step, or None where it is not known
    kept: float | None  # expected number of those prompts whose group has any variance
    recommendation: Headline  # one piece of advice


def probe(summary: Summary, batch: int | None) -> Probe:
    """Judge a sampled pass with n > 1; `batch` is `data.rollout_batch_size`, or None where it is not known."""
    verdicts = []
    for metric, judged in read(RANGES).items() if summary.measure == "accuracy" else ():
        value, (least, low, high, most) = summary.figures[metric].value, judged["thresholds"]
        place = sum((value >= least, value >= low, value > high, value > most))
        verdicts.append(Verdict(metric, LEVELS[place], judged["texts"][place]))
    kept = None if batch is None else batch * (1.0 - summary.flat_share)
    return Probe(verdicts, batch, kept, _recommendation(summary, verdicts, batch, kept))


def _recommendation(summary: Summary, verdicts: list[Verdict], batch: int | None, kept: float | None) -> Headline:
    """Advice on the first obstacle, or to train where there is none."""
    truncated, flat = summary.figures["truncated"].value, summary.flat_share
    if truncated > TRUNCATION_HARMS:
        return Headline(
            "weak",
            f"Raise the limit on response tokens and probe again: it cuts off {truncated:.1%} of the responses, so the "
            "other figures understate the model.",
        )
    if obstacle := next((verdict for verdict in verdicts if verdict.level == "bad"), None):
        unread = sum(summary.reasons.get(reason, 0) for reason in UNREAD) / summary.responses
        form = f" (from {unread:.1%} of the responses no answer could be read: teach the format)"
        return Headline("bad", f"Do not train yet: {obstacle.text}{form if unread > FORMAT_FAILURES else ''}.")
    left = "" if kept is None else f": of {batch} prompts a step about {kept:.0f} carry a signal"
    if flat > FILTER_FROM:
        return Headline(
            "weak",
            f"Train, but first drop the questions that teach nothing (--filter_out): {flat:.1%} of the groups have no "
            f"variance{left}.",
        )
    return Headline("good", f"Train: {1.0 - flat:.1%} of the groups have some variance{left}.")
