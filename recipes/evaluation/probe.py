"""The signal probe: how many groups have zero variance, and which questions to keep."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipes.data.rows import read_rows, write_split
from recipes.errors import RecipeError
from recipes.evaluation.comparison import Headline
from recipes.evaluation.questions import Question
from recipes.responses.measures import Measures, Summary
from recipes.rewards.contract import is_right


def reasons_to_drop(questions: Sequence[Question], measures: Measures) -> dict[int, str]:
    """Row of each group without variance -> "all right", "all wrong" (accuracy and score 0), else "same score".

    "same score" is equal partial credit, or any equal scores of a reward that states no accuracy.
    """
    dropped = {}
    for question, flat, figures in zip(questions, measures.flat, measures.questions, strict=True):
        if flat:
            right = figures.get("accuracy")
            wrong = right == figures["mean_score"] == 0.0
            dropped[question.row] = "all right" if is_right(right) else "all wrong" if wrong else "same score"
    return dropped


@dataclass(frozen=True)
class Filtered:
    """Row counts of `--filter_out`: kept, dropped, and kept without a probe."""

    path: str
    kept: int
    dropped: int
    not_probed: int


def write_filtered(
    source: Path,
    target: Path,
    questions: Sequence[Question],
    measures: Measures,
    decided_by: dict[str, Any],
) -> Filtered:
    """Copy to `target` the rows of `source` that give a signal or were not probed; its manifest lists the others.

    Args:
        decided_by: model, sampling and reward of the probe, for the manifest.

    Raises:
        RecipeError: no row is left.
    """
    import pyarrow.parquet as pq

    dropped = reasons_to_drop(questions, measures)
    total = pq.ParquetFile(source).metadata.num_rows
    if len(dropped) == total:
        raise RecipeError(
            "no question gives a signal, so nothing would be left", where="--filter_out", fix="read the recommendation"
        )
    not_probed = total - len(questions)
    settings = {
        "filter": {"dropped": len(dropped), "not_probed": not_probed, "rows": dict(sorted(dropped.items()))},
        "probe": decided_by,
    }
    kept: Iterator[Any] = (record for row, record in enumerate(read_rows(source, at_once=1024)) if row not in dropped)
    facts, schema = {"source": str(source), "settings": settings}, pq.read_schema(source)
    written = write_split(target, kept, facts, schema=schema)
    return Filtered(str(target), written.rows, len(dropped), not_probed)


# Thresholds of the verdicts: least, good from, good to, most. Outside of the outer two a figure is bad.
RANGES = {
    "accuracy": (0.05, 0.10, 0.80, 0.95),
    "score_variance": (0.01, 0.05, math.inf, math.inf),
    "group_entropy_bits": (-math.inf, 0.2, 0.8, math.inf),
}
LEVELS = ("bad", "weak", "good", "weak", "bad")
TEXTS = {
    "accuracy": (
        "fine-tune first, or start from easier questions: right answers are too rare to be reinforced",
        "hard: right answers are few, and many groups hold none",
        "good: right and wrong answers to compare",
        "easy: wrong answers are few, and many groups are right throughout",
        "use a harder set: there is next to nothing left to learn",
    ),
    "score_variance": (
        "no signal: the answers of a group score alike; drop such questions (--filter_out) or raise the temperature",
        "weak: the answers of a group differ little in score, so the gradient comes from few prompts",
        "good: the answers of a group differ in score",
    ),
    "group_entropy_bits": (
        "",
        "low: groups are nearly all right or all wrong",
        "good: groups are split, but not by chance alone",
        "high: groups are near half right, noisy advantages",
    ),
}
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


def judge(metric: str, value: float) -> Verdict:
    """The verdict on a metric's mean over the questions."""
    least, low, high, most = RANGES[metric]
    place = sum((value >= least, value >= low, value > high, value > most))
    return Verdict(metric, LEVELS[place], TEXTS[metric][place])


@dataclass(frozen=True)
class Probe:
    """The signal probe's result."""

    # One for each metric of `RANGES`; none where the reward states no accuracy.
    verdicts: list[Verdict]
    prompts: int | None  # prompts a training step, or None where it is not known
    kept: float | None  # expected number of those prompts whose group has any variance
    recommendation: Headline  # one piece of advice


def probe(summary: Summary, batch: int | None) -> Probe:
    """Judge a sampled pass with n > 1.

    Args:
        batch: prompts a training step (`data.rollout_batch_size`), or None where it is not known.
    """
    judged = RANGES if summary.measure == "accuracy" else ()
    verdicts = [judge(metric, summary.figures[metric].value) for metric in judged]
    kept = None if batch is None else batch * (1.0 - summary.flat_share)
    return Probe(verdicts, batch, kept, Headline(*_recommendation(summary, verdicts, batch, kept)))


def _recommendation(
    summary: Summary, verdicts: list[Verdict], batch: int | None, kept: float | None
) -> tuple[str, str]:
    """Return level and advice: on the first obstacle, or to train where there is none."""
    truncated = summary.figures["truncated"].value
    if truncated > TRUNCATION_HARMS:
        return "weak", (
            f"Raise the limit on response tokens and probe again: it cuts off {truncated:.1%} of the responses, so the "
            "other figures understate the model."
        )
    obstacle = next((verdict for verdict in verdicts if verdict.level == "bad"), None)
    if obstacle:
        unread = sum(summary.reasons.get(reason, 0) for reason in UNREAD) / summary.responses
        form = f" (from {unread:.1%} of the responses no answer could be read: teach the format)"
        return "bad", f"Do not train yet: {obstacle.text}{form if unread > FORMAT_FAILURES else ''}."
    flat = summary.flat_share
    left = "" if kept is None else f": of {batch} prompts a step about {kept:.0f} carry a signal"
    if flat > FILTER_FROM:
        return "weak", (
            f"Train, but first drop the questions that teach nothing (--filter_out): {flat:.1%} of the groups have no "
            f"variance{left}."
        )
    return "good", f"Train: {1.0 - flat:.1%} of the groups have some variance{left}."
