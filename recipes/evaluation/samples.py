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

# What changed sides between two models is what a comparison is read for.
CHANGED = ("won", "lost")
MOST_ANSWERS = 4


class Answer(NamedTuple):
    """One response; `label` says whose it is."""

    label: str
    response: Response
    score: Score


@dataclass(frozen=True)
class Sample:
    """One question with some answers; texts are raw, and escaped where they are rendered.

    Attributes:
        groups: for each model its label, right answers (None without an accuracy), answers, and mean score.
        images: data URLs.
    """

    question: Question
    outcome: str
    reasons: list[str]
    groups: list[tuple[str, int | None, int, float]]
    answers: list[Answer]
    images: list[str] = field(default_factory=list)


class Samples:
    """Keeps the first `most` questions of every kind, an outcome with its reason codes."""

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
        """The samples of the report, in the file's order: those that changed sides first, then of every kind in turn.

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
    if kind == "analyse":
        answers = _varied("", scored["model_sampled"], MOST_ANSWERS)
        outcome = _outcome(scored["model_sampled"].scores)
    elif kind == "evaluation":
        answers = _varied("greedy", scored["model_greedy"], 1) + _varied("sampled", scored["model_sampled"], 2)
        outcome = _outcome(scored["model_greedy"].scores).removeprefix("all ")
    else:
        answers = _varied("base", scored["base_greedy"], 1) + _varied("trained", scored["trained_greedy"], 1)
        outcome = _change(*(answer.score for answer in answers))
    return Sample(
        question=question,
        outcome=outcome,
        reasons=sorted({answer.score.reason for answer in answers}),
        groups=[
            (key.removesuffix("_sampled").removeprefix("model"), _right(scores), len(scores), _mean(scores))
            for key, (_, scores) in scored.items()
            if len(scores) > 1
        ],
        answers=answers,
    )


def _right(scores: Sequence[Score]) -> int | None:
    return None if any(score.right is None for score in scores) else sum(score.right is True for score in scores)


def _mean(scores: Sequence[Score]) -> float:
    return fmean(score.value for score in scores)


def _outcome(scores: Sequence[Score]) -> str:
    right = _right(scores)
    if right is None:
        return "scored"
    return "all right" if right == len(scores) else "mixed" if right else "all wrong"


def _change(base: Score, trained: Score) -> str:
    if base.right is None or trained.right is None:
        return "won" if trained.value > base.value else "lost" if trained.value < base.value else "same"
    outcomes = {(True, True): "both right", (False, False): "both wrong", (False, True): "won", (True, False): "lost"}
    return outcomes[base.right, trained.right]


def _varied(label: str, scored: Scored, most: int) -> list[Answer]:
    """The first answer of each reason, then the first ones of all, `most` together, in the order of sampling."""
    first: dict[str, int] = {}
    for number, score in enumerate(scored.scores):
        first.setdefault(score.reason, number)
    order = list(dict.fromkeys([*first.values(), *range(len(scored.scores))]))
    return [
        Answer(label or f"answer {number + 1}", scored.responses[number], scored.scores[number])
        for number in sorted(order[:most])
    ]
