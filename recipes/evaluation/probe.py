"""The signal probe: how many groups have zero variance, and which questions to keep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipes.data.manifests import find_manifest
from recipes.data.rows import write_split
from recipes.errors import RecipeError
from recipes.evaluation.comparison import Headline
from recipes.evaluation.metrics import Collector, PassSummary
from recipes.evaluation.questions import Question


def reasons_to_drop(questions: Sequence[Question], collector: Collector) -> dict[int, str]:
    """Row -> why its group has no variance: "all right", "all wrong", or "same score" (partial credit throughout)."""
    groups = zip(questions, collector.flat, collector.columns["accuracy"], collector.columns["mean_score"], strict=True)
    return {
        question.row: "all right" if accuracy == 1.0 else "all wrong" if accuracy == mean == 0.0 else "same score"
        for question, flat, accuracy, mean in groups
        if flat
    }


@dataclass(frozen=True)
class Filtered:
    """Rows in the file of `--filter_out`: kept, dropped, and kept without a probe; `why`: dropped rows by reason."""

    path: str
    kept: int
    dropped: int
    not_probed: int
    why: dict[str, int]


def write_filtered(
    source: Path,
    target: Path,
    questions: Sequence[Question],
    collector: Collector,
    decided_by: dict[str, Any],
    *,
    overwrite: bool = False,
) -> Filtered:
    """Copy the rows of `source` that give a signal or were not probed to `target`, with a manifest that says what left.

    Args:
        decided_by: what made the decision (model, sampling, reward), for the manifest.

    Raises:
        RecipeError: no row is left.
    """
    import pyarrow.parquet as pq

    dropped = reasons_to_drop(questions, collector)
    total = pq.ParquetFile(source).metadata.num_rows
    if len(dropped) == total:
        raise RecipeError(
            "no question gives a signal, so nothing would be left", where="--filter_out", fix="read the recommendation"
        )
    not_probed, why = total - len(questions), dict(Counter(dropped.values()))
    made = find_manifest(source)
    settings = {
        "filter": {
            "dropped": len(dropped),
            "not_probed": not_probed,
            "why": why,
            "rows": dict(sorted(dropped.items())),
        },
        "probe": decided_by,
        "source_manifest": made and made.as_json(),
    }
    records = (record for batch in pq.ParquetFile(source).iter_batches(1024) for record in batch.to_pylist())
    kept = (record for row, record in enumerate(records) if row not in dropped)
    written = write_split(target, kept, {"source": str(source), "settings": settings}, force=overwrite)
    return Filtered(str(target), written.rows, len(dropped), not_probed, why)


# Thresholds of the verdicts: the only place that holds them.
ACCURACY_TOO_LOW, ACCURACY_GOOD, ACCURACY_TOO_HIGH = 0.05, (0.10, 0.80), 0.95
VARIANCE_NONE, VARIANCE_GOOD = 0.01, 0.05
ENTROPY_GOOD = (0.2, 0.8)
TRUNCATION_HARMS = 0.10
FILTER_FROM = 0.30
FORMAT_FAILURES = 0.5
# For drawing: the metric's largest value, and where it is good.
SCALES = {
    "accuracy": (1.0, ACCURACY_GOOD),
    "score_variance": (0.25, (VARIANCE_GOOD, 0.25)),
    "group_entropy_bits": (1.0, ENTROPY_GOOD),
}
# Reason codes of the reward files that say "no answer could be read", as against "a wrong answer was read".
UNREAD = ("no_answer", "unparsable", "truncated", "too_long")


@dataclass(frozen=True)
class Verdict:
    """One figure's judgement: `level` is "good", "weak" or "bad"."""

    metric: str
    value: float
    level: str
    text: str


# Metric -> condition, level and text; the first condition that holds decides.
VERDICTS: dict[str, tuple[tuple[Callable[[float], bool], str, str], ...]] = {
    "accuracy": (
        (lambda value: value < ACCURACY_TOO_LOW, "bad", "fine-tune first: right answers are too rare to be reinforced"),
        (lambda value: value > ACCURACY_TOO_HIGH, "bad", "use a harder set: there is next to nothing left to learn"),
        (lambda value: value < ACCURACY_GOOD[0], "weak", "hard: most groups hold no right answer"),
        (lambda value: value > ACCURACY_GOOD[1], "weak", "easy: most groups are right throughout"),
        (lambda value: True, "good", "good: right and wrong answers to compare"),
    ),
    "score_variance": (
        (lambda value: value < VARIANCE_NONE, "bad", "no signal: the answers of a group score alike"),
        (lambda value: value > VARIANCE_GOOD, "good", "good: the answers of a group differ in score"),
        (lambda value: True, "weak", "weak: most groups have zero variance, so the gradient comes from few prompts"),
    ),
    "group_entropy_bits": (
        (lambda value: value < ENTROPY_GOOD[0], "weak", "low: most groups are all right or all wrong"),
        (lambda value: value > ENTROPY_GOOD[1], "weak", "high: accuracy near 0.5 in most groups, noisy advantages"),
        (lambda value: True, "good", "good: groups are split, but not by chance alone"),
    ),
}


def judge(metric: str, value: float) -> Verdict:
    """The verdict on a metric's mean over the questions."""
    return next(Verdict(metric, value, level, text) for holds, level, text in VERDICTS[metric] if holds(value))


@dataclass(frozen=True)
class Probe:
    """The signal probe's result.

    Attributes:
        verdicts: one per figure that decides.
        prompts: prompts a training step, or None where it is not known; `kept`: how many of them, as an expectation,
            have a group with any variance.
        zero_variance_share: share of groups without.
        recommendation: one piece of advice.
    """

    verdicts: list[Verdict]
    prompts: int | None
    kept: float | None
    zero_variance_share: float
    recommendation: Headline


def probe(summary: PassSummary, batch: int | None) -> Probe:
    """Judge a sampled pass with n > 1.

    Args:
        batch: prompts a training step (`data.rollout_batch_size`), or None where it is not known.
    """
    # The thresholds are for accuracies, and for scores on their scale.
    judged = VERDICTS if summary.measure == "accuracy" else ()
    verdicts = [judge(metric, summary.mean(metric).value) for metric in judged]
    share = summary.grouped().zero_variance.share
    kept = None if batch is None else batch * (1.0 - share)
    return Probe(verdicts, batch, kept, share, recommend(summary, batch))


def recommend(summary: PassSummary, batch: int | None) -> Headline:
    """One piece of advice: the first thing that stands in the way, or that nothing does."""
    truncated = summary.mean("truncated").value
    if truncated > TRUNCATION_HARMS:
        return Headline(
            "weak",
            f"Raise the limit on response tokens and probe again: it cuts off {truncated:.1%} of the responses, so the "
            "other figures understate the model.",
        )
    if summary.measure == "accuracy" and (obstacle := _obstacle(summary)):
        return obstacle
    share = summary.grouped().zero_variance.share
    left = "" if batch is None else f": of {batch} prompts a step about {batch * (1.0 - share):.0f} carry a signal"
    if share > FILTER_FROM:
        return Headline(
            "weak",
            f"Train, but first drop the questions that teach nothing (--filter_out): {share:.1%} of the groups have no "
            f"variance{left}.",
        )
    return Headline("good", f"Train: {1.0 - share:.1%} of the groups have some variance{left}.")


def _obstacle(summary: PassSummary) -> Headline | None:
    """Why training on these questions would teach little, by accuracy and variance; None where nothing stands in it."""
    accuracy = summary.mean("accuracy").value
    if accuracy < ACCURACY_TOO_LOW:
        unread = sum(summary.reasons.get(reason, 0) for reason in UNREAD) / summary.responses
        if unread > FORMAT_FAILURES:
            return Headline(
                "bad",
                f"Fine-tune first, on the answer's format: from {unread:.1%} of the responses no answer could be read, "
                "so the model may know more than it shows.",
            )
        return Headline(
            "bad",
            f"Fine-tune first, or start from easier questions: {accuracy:.1%} of the answers are right, so nearly "
            "every group is wrong throughout and has no advantage.",
        )
    if accuracy > ACCURACY_TOO_HIGH:
        return Headline(
            "bad",
            f"Use a harder set: {accuracy:.1%} of the answers are right already, and GRPO learns only from mistakes.",
        )
    if summary.mean("score_variance").value < VARIANCE_NONE:
        return Headline(
            "bad",
            "Do not train on this set as it is: questions are either always or never solved. Drop them with "
            "--filter_out and see what is left, or sample more answers at a higher temperature.",
        )
    return None
