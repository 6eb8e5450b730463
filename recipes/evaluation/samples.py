"""The questions that a report shows: some of every kind, picked while they are scored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice, zip_longest
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from recipes.evaluation.questions import Question, data_url, with_images
from recipes.evaluation.sampling import Response
from recipes.evaluation.scoring import Score, Scored
from recipes.statistics import NOISE

# Outcomes that differ between the two models: readers of a comparison want to see these questions.
CHANGED = ("won", "lost")
# Kind of evaluation -> pass -> number of its answers that are shown.
SHOWN = {
    "analyse": {"model_sampled": 4},
    "evaluation": {"model_greedy": 1, "model_sampled": 2},
    "comparison": {"base_greedy": 1, "trained_greedy": 1},
}


class ShownAnswer(NamedTuple):
    """One response; `label` names the model and the pass."""

    label: str
    response: Response
    score: Score


@dataclass(frozen=True)
class Sample:
    """One question with some answers; texts are raw, and escaped where they are rendered."""

    question: Question
    outcome: str
    reasons: list[str]
    # For each sampled pass: name, number of right answers (None without an accuracy), number of answers, mean score.
    groups: list[tuple[str, int | None, int, float]]
    answers: list[ShownAnswer]
    images: list[str] = field(default_factory=list)  # data URLs


class Samples:
    """Keeps the first `most` questions of every kind; a kind is an outcome with its reason codes."""

    def __init__(self, kind: str, most: int) -> None:
        self._kind, self._most = kind, most
        self._kept: dict[tuple[str, str], list[Sample]] = {}

    def add(self, question: Question, scored: Mapping[str, Scored]) -> None:
        """Keep one question, or drop it where its kind has enough."""
        sample = _sample(self._kind, question, scored)
        kept = self._kept.setdefault((sample.outcome, " ".join(sample.reasons)), [])
        if len(kept) < self._most:
            kept.append(sample)

    def entries(self, data: Path, questions: Sequence[Question]) -> list[Sample]:
        """At most `most` samples, in the file's order. Changed outcomes are picked first, then the other kinds in turn.

        Args:
            data: the questions' file, for the images.
        """
        changed = [samples for (outcome, _), samples in self._kept.items() if outcome in CHANGED]
        others = [samples for (outcome, _), samples in self._kept.items() if outcome not in CHANGED]
        turns = filter(None, chain(*zip_longest(*changed), *zip_longest(*others)))
        picked = {sample.question.row: sample for sample in islice(turns, self._most)}
        return [
            replace(picked[question.row], images=[data_url(image) for image in question.images])
            for question in with_images(data, [question for question in questions if question.row in picked])
        ]


def _sample(kind: str, question: Question, scored: Mapping[str, Scored]) -> Sample:
    answers = [
        ShownAnswer(name.replace("_", " "), scored[name].responses[number], scored[name].scores[number])
        for name, most in SHOWN[kind].items()
        for number in _varied(scored[name].scores, most)
    ]
    if kind == "comparison":
        outcome = _change(*(answer.score for answer in answers))
    else:
        outcome = _outcome(scored[next(iter(SHOWN[kind]))].scores)
    return Sample(
        question=question,
        outcome=outcome,
        reasons=sorted({answer.score.reason for answer in answers}),
        groups=[
            (name.replace("_", " "), _right(scores), len(scores), fmean(score.value for score in scores))
            for name, (_, scores) in scored.items()
            if len(scores) > 1
        ],
        answers=answers,
    )


def _right(scores: Sequence[Score]) -> int | None:
    return None if any(score.right is None for score in scores) else sum(score.right is True for score in scores)


def _outcome(scores: Sequence[Score]) -> str:
    right = _right(scores)
    if right is None:
        return "scored"
    return "all right" if right == len(scores) else "mixed" if right else "all wrong"


def _change(base: Score, trained: Score) -> str:
    before, after = (score.value if score.accuracy is None else score.accuracy for score in (base, trained))
    if abs(after - before) <= NOISE:
        return "same" if base.right is None else "both right" if base.right else "both wrong"
    return "won" if after > before else "lost"


def _varied(scores: Sequence[Score], most: int) -> list[int]:
    """Indices of at most `most` answers, in the order of sampling: the first of each reason, then the first others."""
    first: dict[str, int] = {}
    for number, score in enumerate(scores):
        first.setdefault(score.reason, number)
    return sorted(list(dict.fromkeys([*first.values(), *range(len(scores))]))[:most])
