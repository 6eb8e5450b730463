"""The signal probe's judgement: does this model on this data give GRPO something to learn from?"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

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
