"""The questions that a report shows: some of every kind, picked while they are scored."""

from __future__ import annotations

import base64
import hashlib
import heapq
import pickle
import tempfile
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

from recipes.evaluation.questions import Question, with_images

if TYPE_CHECKING:
    from recipes.evaluation.evaluate import Scored

PER_KIND = 60
# What changed sides between two models is what a comparison is read for.
CHANGED = ("won", "lost")
PER_CHANGED_KIND = 300
MOST_ANSWERS = 4
LONGEST_TEXT = 20_000


@dataclass(frozen=True)
class Answer:
    """One response as the page shows it; `label` says whose it is."""

    label: str
    text: str
    score: float
    right: bool
    reason: str
    tokens: int | None
    truncated: bool
    flags: list[str]


@dataclass(frozen=True)
class GroupLine:
    """How many of a model's sampled answers are right, and their mean score."""

    label: str
    right: int
    n: int
    score: float


@dataclass(frozen=True)
class Sample:
    """One question with some answers; texts are raw, and escaped where they are rendered. `images` are data URLs."""

    row: int
    outcome: str
    reasons: list[str]
    flags: list[str]
    prompt: str
    ground_truth: str
    groups: list[GroupLine]
    answers: list[Answer]
    images: list[str] = field(default_factory=list)


class Samples:
    """Takes every scored question by `offer` and keeps some of every kind; `entries` gives those that are shown.

    A kind is an outcome with its reason codes. Rare kinds are kept whole, common ones by a fixed pseudo-random order
    of the rows. Texts wait in a temporary file, so that memory does not grow with them.
    """

    def __init__(self, kind: str, most: int) -> None:
        self._kind, self._most = kind, most
        self._heaps: dict[Hashable, list[tuple[int, int, int]]] = {}  # (-order, row, place in the file)
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - `entries` closes it

    def offer(self, question: Question, scored: Mapping[str, Scored]) -> None:
        """One question with its responses under every pass."""
        outcome, reasons = outcome_of(self._kind, scored)
        order = int.from_bytes(hashlib.sha256(str(question.row).encode()).digest()[:6], "big")
        heap = self._heaps.setdefault((outcome, reasons), [])
        if len(heap) >= (PER_CHANGED_KIND if outcome in CHANGED else PER_KIND):
            if -order < heap[0][0]:
                return
            heapq.heappop(heap)
        heapq.heappush(heap, (-order, question.row, self._file.seek(0, 2)))
        pickle.dump(sample_of(self._kind, outcome, question, scored), self._file)

    def entries(self, data: Path, questions: Sequence[Question]) -> list[Sample]:
        """The samples of the report, in the file's order: those that changed sides first, then of every kind in turn.

        Args:
            data: the questions' file, for the images.
        """
        kinds = {kind: [each[1:] for each in sorted(heap, reverse=True)] for kind, heap in self._heaps.items()}
        changed = [picks for (outcome, _), picks in kinds.items() if outcome in CHANGED]
        others = [picks for (outcome, _), picks in kinds.items() if outcome not in CHANGED]
        turns = chain(_in_turn(changed), _in_turn(others))
        samples = {}
        for (row, place), _ in zip(turns, range(self._most), strict=False):
            self._file.seek(place)
            samples[row] = pickle.load(self._file)
        self._file.close()
        shown = [question for question in questions if question.row in samples]
        return [
            replace(samples[question.row], images=[_data_url(image) for image in question.images])
            for question in with_images(data, shown)
        ]


def outcome_of(kind: str, scored: Mapping[str, Scored]) -> tuple[str, tuple[str, ...]]:
    """What a question is filtered by: its outcome and its reason codes.

    The outcome is "all right", "mixed" or "all wrong" for the signal probe; "right" or "wrong" under greedy decoding
    for one model; "won", "lost", "both right" or "both wrong" under greedy decoding for two.
    """
    if kind == "analyse":
        stats = scored["model_sampled"].stats
        return stats.outcome, tuple(sorted(stats.reasons))
    if kind == "evaluation":
        score = scored["model_greedy"].scores[0]
        return ("right" if score.right else "wrong"), (score.reason,)
    base, trained = scored["base_greedy"].scores[0], scored["trained_greedy"].scores[0]
    if base.right == trained.right:
        outcome = "both right" if base.right else "both wrong"
    else:
        outcome = "won" if trained.right else "lost"
    return outcome, (base.reason, trained.reason)


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
        flags=sorted({flag for answer in answers for flag in answer.flags}),
        prompt=question.text,
        ground_truth=question.ground_truth,
        groups=[_group_line(key, one) for key, one in scored.items() if one.stats.n > 1],
        answers=answers,
    )


def _in_turn(kinds: list[list[tuple[int, int]]]) -> list[tuple[int, int]]:
    return [pick for turn in zip_longest(*kinds) for pick in turn if pick is not None]


def _group_line(key: str, scored: Scored) -> GroupLine:
    stats = scored.stats
    return GroupLine(key.removesuffix("_sampled").removeprefix("model"), stats.right, stats.n, stats.mean_score)


def _varied(label: str, scored: Scored, most: int) -> list[Answer]:
    """The first answer of each reason, then the first ones of all, `most` together, in the order of sampling."""
    first_of_reason: dict[str, int] = {}
    for number, score in enumerate(scored.scores):
        first_of_reason.setdefault(score.reason, number)
    first = list(first_of_reason.values())
    order = [*first, *(number for number in range(len(scored.scores)) if number not in first)]
    return [_answer(label, scored, number) for number in sorted(order[:most])]


def _answer(label: str, scored: Scored, number: int) -> Answer:
    response, score = scored.group.responses[number], scored.scores[number]
    cut = len(response.text) - LONGEST_TEXT
    return Answer(
        label=label or f"answer {number + 1}",
        text=response.text[:LONGEST_TEXT] + (f"\n[... {cut} more characters]" if cut > 0 else ""),
        score=score.value,
        right=score.right,
        reason=score.reason,
        tokens=response.tokens,
        truncated=response.truncated,
        flags=scored.flags[number],
    )


def _data_url(image: bytes) -> str:
    kind = "jpeg" if image[:2] == b"\xff\xd8" else "webp" if image[8:12] == b"WEBP" else "png"
    return f"data:image/{kind};base64,{base64.b64encode(image).decode()}"
