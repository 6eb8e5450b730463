"""The questions that a report shows: some of every kind, picked while they are scored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, zip_longest
from pathlib import Path

from recipes.evaluation.questions import Question, data_url, with_images
from recipes.evaluation.result import Scored

# What changed sides between two models is what a comparison is read for.
CHANGED = ("won", "lost")
PER_KIND, PER_CHANGED_KIND = 60, 300
MOST_ANSWERS = 4
LONGEST_TEXT = 20_000


@dataclass(frozen=True)
class Answer:
    """One response as the page shows it; `label` says whose it is."""

    label: str
    text: str
    score: float
    right: bool | None
    reason: str
    tokens: int | None
    truncated: bool


@dataclass(frozen=True)
class Sample:
    """One question with some answers; texts are raw, and escaped where they are rendered.

    Attributes:
        groups: for each model its label, right answers, answers, and mean score.
        images: data URLs.
    """

    row: int
    outcome: str
    reasons: list[str]
    prompt: str
    ground_truth: str
    groups: list[tuple[str, int | None, int, float]]
    answers: list[Answer]
    images: list[str] = field(default_factory=list)


class Samples:
    """Keeps some questions of every kind: `add` takes every scored one, `entries` gives those for the report.

    A kind is an outcome with its reason codes. The first questions of each are kept, so that memory does not grow with
    the number of questions.
    """

    def __init__(self, kind: str, most: int) -> None:
        self._kind, self._most = kind, most
        self._kept: dict[tuple[str, tuple[str, ...]], list[Sample]] = {}

    def add(self, question: Question, scored: Mapping[str, Scored]) -> None:
        """Keep one question, or drop it where its kind has enough."""
        kind = outcome_of(self._kind, scored)
        kept = self._kept.setdefault(kind, [])
        if len(kept) < (PER_CHANGED_KIND if kind[0] in CHANGED else PER_KIND):
            kept.append(sample_of(self._kind, kind[0], question, scored))

    def entries(self, data: Path, questions: Sequence[Question]) -> list[Sample]:
        """The samples of the report, in the file's order: those that changed sides first, then of every kind in turn.

        Args:
            data: the questions' file, for the images.
        """
        changed = [samples for (outcome, _), samples in self._kept.items() if outcome in CHANGED]
        others = [samples for (outcome, _), samples in self._kept.items() if outcome not in CHANGED]
        turns = filter(None, chain(*zip_longest(*changed), *zip_longest(*others)))
        picked = {sample.row: sample for sample, _ in zip(turns, range(self._most), strict=False)}
        return [
            replace(picked[question.row], images=[data_url(image) for image in question.images])
            for question in with_images(data, [question for question in questions if question.row in picked])
        ]


def outcome_of(kind: str, scored: Mapping[str, Scored]) -> tuple[str, tuple[str, ...]]:
    """Return the outcome of a question and its reason codes, by which the page filters.

    The outcome is "all right", "mixed" or "all wrong" for the signal probe; "right" or "wrong" under greedy decoding
    for one model; "won", "lost", "both right" or "both wrong" under greedy decoding for two. Without a stated accuracy
    it is "scored" for one model, and "won", "lost" or "same" by the scores of two.
    """
    if kind == "analyse":
        stats = scored["model_sampled"].stats
        return stats.outcome, tuple(sorted(stats.reasons))
    if kind == "evaluation":
        score = scored["model_greedy"].scores[0]
        return {True: "right", False: "wrong", None: "scored"}[score.right], (score.reason,)
    base, trained = scored["base_greedy"].scores[0], scored["trained_greedy"].scores[0]
    reasons = (base.reason, trained.reason)
    if base.right is None or trained.right is None:
        return ("won" if trained.value > base.value else "lost" if trained.value < base.value else "same"), reasons
    outcomes = {(True, True): "both right", (False, False): "both wrong", (False, True): "won", (True, False): "lost"}
    return outcomes[base.right, trained.right], reasons


def sample_of(kind: str, outcome: str, question: Question, scored: Mapping[str, Scored]) -> Sample:
    """One question as the report's table shows it."""
    if kind == "analyse":
        answers = _varied("", scored["model_sampled"], MOST_ANSWERS)
    elif kind == "evaluation":
        answers = _varied("greedy", scored["model_greedy"], 1) + _varied("sampled", scored["model_sampled"], 2)
    else:
        answers = _varied("base", scored["base_greedy"], 1) + _varied("trained", scored["trained_greedy"], 1)
    return Sample(
        row=question.row,
        outcome=outcome,
        reasons=sorted({answer.reason for answer in answers}),
        prompt=question.text,
        ground_truth=question.ground_truth,
        groups=[
            (key.removesuffix("_sampled").removeprefix("model"), one.stats.right, one.stats.n, one.stats.mean_score)
            for key, one in scored.items()
            if one.stats.n > 1
        ],
        answers=answers,
    )


def _varied(label: str, scored: Scored, most: int) -> list[Answer]:
    """The first answer of each reason, then the first ones of all, `most` together, in the order of sampling."""
    first: dict[str, int] = {}
    for number, score in enumerate(scored.scores):
        first.setdefault(score.reason, number)
    order = list(dict.fromkeys([*first.values(), *range(len(scored.scores))]))
    return [_answer(label or f"answer {number + 1}", scored, number) for number in sorted(order[:most])]


def _answer(label: str, scored: Scored, number: int) -> Answer:
    response, score = scored.group.responses[number], scored.scores[number]
    cut = len(response.text) - LONGEST_TEXT
    return Answer(
        label=label,
        text=response.text[:LONGEST_TEXT] + (f"\n[... {cut} more characters]" if cut > 0 else ""),
        score=score.value,
        right=score.right,
        reason=score.reason,
        tokens=response.tokens,
        truncated=response.truncated,
    )
