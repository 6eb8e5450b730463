"""The signal probe: do groups disagree, and which questions to keep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from recipes.data.rows import manifest_path, read_manifest, write_split
from recipes.errors import RecipeError
from recipes.evaluation.questions import Question
from recipes.evaluation.statistics import NO_VARIANCE, Collector


def reasons_to_drop(questions: Sequence[Question], collector: Collector) -> dict[int, str]:
    """Row -> why its group has no variance: "all right", "all wrong", or "same score" (partial credit throughout)."""
    columns = collector.columns
    # With full marks throughout a group scores alike; with none it may still differ in partial credit, and teaches.
    found = zip(questions, columns["score_variance"], columns["pass_at_1"], columns["mean_score"], strict=True)
    return {
        question.row: "all right" if full == 1.0 else "all wrong" if mean <= 0.0 else "same score"
        for question, variance, full, mean in found
        if variance <= NO_VARIANCE
    }


def write_filtered(
    source: Path,
    target: Path,
    questions: Sequence[Question],
    collector: Collector,
    origin: dict[str, Any],
    *,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Copy the rows of `source` that give a signal or were not probed to `target`, with a manifest that says what left.

    Args:
        origin: what made the decision (model, sampling, reward), for the manifest.

    Returns:
        `path`, `kept`, `dropped` and `not_probed` in rows, and `why`: rows by reason.

    Raises:
        RecipeError: no row is left.
    """
    dropped = reasons_to_drop(questions, collector)
    total = _rows(source)
    counts = {"dropped": len(dropped), "not_probed": total - len(questions), "why": dict(Counter(dropped.values()))}
    if len(dropped) == total:
        raise RecipeError(
            "no question gives a signal, so nothing would be left", where="--filter_out", fix="read the recommendation"
        )
    before = read_manifest(source) if manifest_path(source).is_file() else None
    manifest = {
        "source": str(source),
        "filter": counts | {"rows": [{"row": row, "why": why} for row, why in sorted(dropped.items())]},
        "probe": origin,
        "source_manifest": before,
    }
    written = write_split(target, _kept(source, dropped), manifest=manifest, force=overwrite)
    return {"path": str(target), "kept": written["rows"], **counts}


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
    words: str


def judge_accuracy(value: float) -> Verdict:
    """Mean accuracy: 10-80% good, under 5% and over 95% bad."""
    low, high = ACCURACY_GOOD
    if value < ACCURACY_TOO_LOW:
        level, words = "bad", "fine-tune first: right answers are too rare to be reinforced"
    elif value > ACCURACY_TOO_HIGH:
        level, words = "bad", "use a harder set: there is next to nothing left to learn"
    elif value < low:
        level, words = "weak", "hard: most groups hold no right answer"
    elif value > high:
        level, words = "weak", "easy: most groups are right throughout"
    else:
        level, words = "good", "good: right and wrong answers to compare"
    return Verdict("accuracy", value, level, words)


def judge_variance(value: float) -> Verdict:
    """Mean variance of the scores within a group: above 0.05 good, under 0.01 no signal."""
    if value < VARIANCE_NONE:
        level, words = "bad", "no signal: the answers of a group score alike, so advantages vanish"
    elif value > VARIANCE_GOOD:
        level, words = "good", "good: the answers of a group differ in score"
    else:
        level, words = "weak", "weak: few groups differ, so the gradient comes from few prompts"
    return Verdict("score_variance", value, level, words)


def judge_entropy(value: float) -> Verdict:
    """Mean entropy of a group's mean accuracy in bits: 0.2-0.8 good."""
    low, high = ENTROPY_GOOD
    if value < low:
        level, words = "weak", "low: most groups agree with themselves"
    elif value > high:
        level, words = "weak", "high: nearly every group is a coin flip, so single advantages are noisy"
    else:
        level, words = "good", "good: groups are split, but not by chance alone"
    return Verdict("group_entropy_bits", value, level, words)


def probe(summary: dict[str, Any], batch: int | None) -> dict[str, Any]:
    """Verdicts, the batch that is left, and one recommendation, from a sampled pass's summary.

    Args:
        summary: `Collector.summary()` with n > 1.
        batch: prompts per training step (`data.rollout_batch_size`), or None where it is not known.

    Returns:
        `verdicts` (list of `Verdict` as dicts), `effective_batch` (`prompts`, `kept`: the expected number of prompts
        whose group has any variance, `zero_variance_share`) and `recommendation` (`level`, `words`).
    """
    verdicts = [
        judge_accuracy(summary["accuracy"]["value"]),
        judge_variance(summary["score_variance"]["value"]),
        judge_entropy(summary["group_entropy_bits"]["value"]),
    ]
    share = summary["groups"]["zero_variance"]["share"]
    kept = None if batch is None else batch * (1.0 - share)
    return {
        "verdicts": [asdict(verdict) for verdict in verdicts],
        "effective_batch": {"prompts": batch, "kept": kept, "zero_variance_share": share},
        "recommendation": recommend(summary, batch),
    }


def recommend(summary: dict[str, Any], batch: int | None) -> dict[str, str]:
    """One piece of advice: the first thing that stands in the way, or that nothing does."""
    accuracy, truncated = summary["accuracy"]["value"], summary["truncated"]["value"]
    if truncated > TRUNCATION_HARMS:
        return _advice(
            "weak",
            f"Raise the limit on response tokens and probe again: it cuts off {truncated:.1%} of the responses, so the "
            "other figures understate the model.",
        )
    if accuracy < ACCURACY_TOO_LOW:
        return _advice("bad", _too_hard(summary))
    if accuracy > ACCURACY_TOO_HIGH:
        return _advice(
            "bad",
            f"Use a harder set: {accuracy:.1%} of the answers are right already, and GRPO learns only from mistakes.",
        )
    if summary["score_variance"]["value"] < VARIANCE_NONE:
        return _advice(
            "bad",
            "Do not train on this set as it is: questions are either always or never solved. Drop them with "
            "--filter_out and see what is left, or sample more answers at a higher temperature.",
        )
    return _train(summary["groups"]["zero_variance"]["share"], batch)


def _advice(level: str, words: str) -> dict[str, str]:
    return {"level": level, "words": words}


def _too_hard(summary: dict[str, Any]) -> str:
    unread = sum(summary["reasons"].get(reason, 0) for reason in UNREAD) / summary["responses"]
    if unread > FORMAT_FAILURES:
        return (
            f"Fine-tune first, on the answer's format: from {unread:.1%} of the responses no answer could be read, so "
            "the model may know more than it says."
        )
    return (
        f"Fine-tune first, or start from easier questions: {summary['accuracy']['value']:.1%} of the answers are "
        "right, so nearly every group is wrong throughout and has no advantage."
    )


def _train(dead: float, batch: int | None) -> dict[str, str]:
    left = "" if batch is None else f": of {batch} prompts a step about {batch * (1.0 - dead):.0f} carry a signal"
    if dead > FILTER_FROM:
        first = "Train, but drop what teaches nothing first (--filter_out)"
        words = f"{first}: {dead:.1%} of the groups have no variance{left}."
        return _advice("weak", words)
    return _advice("good", f"Train: {1.0 - dead:.1%} of the groups disagree{left}.")
