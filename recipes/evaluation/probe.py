"""The signal probe: how many groups have zero variance, and which questions to keep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipes.data.rows import manifest_path, read_manifest, write_split
from recipes.errors import RecipeError
from recipes.evaluation.comparison import Headline
from recipes.evaluation.metrics import NO_VARIANCE, Collector, PassSummary
from recipes.evaluation.questions import Question


def reasons_to_drop(questions: Sequence[Question], collector: Collector) -> dict[int, str]:
    """Row -> why its group has no variance: "all right", "all wrong", or "same score" (partial credit throughout)."""
    # A group that is right throughout scores alike; one without a right answer may still differ in partial credit.
    groups = zip(questions, collector.variance, collector.right, collector.columns["mean_score"], strict=True)
    return {
        question.row: "all right" if right == collector.sampling.n else "all wrong" if mean <= 0.0 else "same score"
        for question, variance, right, mean in groups
        if variance <= NO_VARIANCE
    }


@dataclass(frozen=True)
class Filtered:
    """What `--filter_out` wrote: rows kept, dropped, and kept without a probe; `why`: dropped rows by reason."""

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
    origin: dict[str, Any],
    *,
    overwrite: bool = False,
) -> Filtered:
    """Copy the rows of `source` that give a signal or were not probed to `target`, with a manifest that says what left.

    Args:
        origin: what made the decision (model, sampling, reward), for the manifest.

    Raises:
        RecipeError: no row is left.
    """
    dropped = reasons_to_drop(questions, collector)
    total = _rows(source)
    if len(dropped) == total:
        raise RecipeError(
            "no question gives a signal, so nothing would be left", where="--filter_out", fix="read the recommendation"
        )
    not_probed, why = total - len(questions), dict(Counter(dropped.values()))
    manifest = {
        "source": str(source),
        "filter": {
            "dropped": len(dropped),
            "not_probed": not_probed,
            "why": why,
            "rows": [{"row": row, "why": reason} for row, reason in sorted(dropped.items())],
        },
        "probe": origin,
        "source_manifest": read_manifest(source) if manifest_path(source).is_file() else None,
    }
    written = write_split(target, _kept(source, dropped), manifest=manifest, force=overwrite)
    return Filtered(str(target), written["rows"], len(dropped), not_probed, why)


def _rows(source: Path) -> int:
    import pyarrow.parquet as pq

    return pq.ParquetFile(source).metadata.num_rows


def _kept(source: Path, dropped: dict[int, str]) -> Iterator[dict[str, Any]]:
    import pyarrow.parquet as pq

    row = 0
    for batch in pq.ParquetFile(source).iter_batches(batch_size=1024):
        for record in batch.to_pylist():
            if row not in dropped:
                yield record
            row += 1


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
UNREAD = ("no_answer", "answer_in_think", "unparsable", "ambiguous", "truncated", "too_long")


@dataclass(frozen=True)
class Verdict:
    """One figure's judgement: `level` is "good", "weak" or "bad"."""

    metric: str
    value: float
    level: str
    text: str


def judge_accuracy(value: float) -> Verdict:
    """Mean accuracy: 10-80% good, under 5% and over 95% bad."""
    low, high = ACCURACY_GOOD
    if value < ACCURACY_TOO_LOW:
        level, text = "bad", "fine-tune first: right answers are too rare to be reinforced"
    elif value > ACCURACY_TOO_HIGH:
        level, text = "bad", "use a harder set: there is next to nothing left to learn"
    elif value < low:
        level, text = "weak", "hard: most groups hold no right answer"
    elif value > high:
        level, text = "weak", "easy: most groups are right throughout"
    else:
        level, text = "good", "good: right and wrong answers to compare"
    return Verdict("accuracy", value, level, text)


def judge_variance(value: float) -> Verdict:
    """Mean variance of the scores within a group: above 0.05 good, under 0.01 no signal."""
    if value < VARIANCE_NONE:
        level, text = "bad", "no signal: the answers of a group score alike, so advantages vanish"
    elif value > VARIANCE_GOOD:
        level, text = "good", "good: the answers of a group differ in score"
    else:
        level, text = "weak", "weak: most groups have zero variance, so the gradient comes from few prompts"
    return Verdict("score_variance", value, level, text)


def judge_entropy(value: float) -> Verdict:
    """Mean entropy of a group's mean accuracy in bits: 0.2-0.8 good."""
    low, high = ENTROPY_GOOD
    if value < low:
        level, text = "weak", "low: most groups are all right or all wrong"
    elif value > high:
        level, text = "weak", "high: accuracy near 0.5 in most groups, so single advantages are noisy"
    else:
        level, text = "good", "good: groups are split, but not by chance alone"
    return Verdict("group_entropy_bits", value, level, text)


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
    verdicts = [
        judge_accuracy(_value(summary, "accuracy")),
        judge_variance(_value(summary, "score_variance")),
        judge_entropy(_value(summary, "group_entropy_bits")),
    ]
    share = _zero_variance_share(summary)
    kept = None if batch is None else batch * (1.0 - share)
    return Probe(verdicts, batch, kept, share, recommend(summary, batch))


def recommend(summary: PassSummary, batch: int | None) -> Headline:
    """One piece of advice: the first thing that stands in the way, or that nothing does."""
    accuracy, truncated = _value(summary, "accuracy"), _value(summary, "truncated")
    if truncated > TRUNCATION_HARMS:
        return Headline(
            "weak",
            f"Raise the limit on response tokens and probe again: it cuts off {truncated:.1%} of the responses, so the "
            "other figures understate the model.",
        )
    if accuracy < ACCURACY_TOO_LOW:
        return Headline("bad", _too_hard(summary))
    if accuracy > ACCURACY_TOO_HIGH:
        return Headline(
            "bad",
            f"Use a harder set: {accuracy:.1%} of the answers are right already, and GRPO learns only from mistakes.",
        )
    if _value(summary, "score_variance") < VARIANCE_NONE:
        return Headline(
            "bad",
            "Do not train on this set as it is: questions are either always or never solved. Drop them with "
            "--filter_out and see what is left, or sample more answers at a higher temperature.",
        )
    share = _zero_variance_share(summary)
    left = "" if batch is None else f": of {batch} prompts a step about {batch * (1.0 - share):.0f} carry a signal"
    if share > FILTER_FROM:
        return Headline(
            "weak",
            f"Train, but first drop the questions that teach nothing (--filter_out): {share:.1%} of the groups have no "
            f"variance{left}.",
        )
    return Headline("good", f"Train: {1.0 - share:.1%} of the groups have some variance{left}.")


def _value(summary: PassSummary, name: str) -> float:
    figure = summary.figures[name]
    return figure.value if figure else 0.0


def _zero_variance_share(summary: PassSummary) -> float:
    return summary.groups.zero_variance.share if summary.groups else 0.0


def _too_hard(summary: PassSummary) -> str:
    unread = sum(summary.reasons.get(reason, 0) for reason in UNREAD) / summary.responses
    if unread > FORMAT_FAILURES:
        return (
            f"Fine-tune first, on the answer's format: from {unread:.1%} of the responses no answer could be read, so "
            "the model may know more than it shows."
        )
    return (
        f"Fine-tune first, or start from easier questions: {_value(summary, 'accuracy'):.1%} of the answers are "
        "right, so nearly every group is wrong throughout and has no advantage."
    )
