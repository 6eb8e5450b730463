"""The figures of an evaluation: of each question's group, and their means with intervals over the questions.

A new metric is one entry in `METRICS` and one attribute of `QuestionStats`.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import fmean

import numpy as np

from recipes.engines.reward_metrics import PART
from recipes.evaluation.sampling import Response, Sampling
from recipes.evaluation.scoring import Score
from recipes.runs.responses import is_flat
from recipes.statistics import Interval, ks_for, mean_with_interval, pass_at_k

BINS = 20
LENGTH_BINS = 40
MISSING = float("nan")


@dataclass(frozen=True)
class Metric:
    """A number that every question has.

    Attributes:
        name: the attribute of `QuestionStats`, and the key in report.json.
        label: for tables.
        style: how it is written, a key of `recipes.evaluation.report.page.STYLES`.
        bounds: the smallest and largest value of a question; None: no such bound.
        of_groups: whether it says something only where a question has several responses.
    """

    name: str
    label: str
    style: str
    bounds: tuple[float, float] | None = None
    of_groups: bool = False

    @property
    def of_accuracy(self) -> bool:
        """Whether only a reward that states an accuracy has it."""
        return self.name in ("accuracy", "flexible", "group_entropy_bits", "score_entropy_bits") or "@" in self.name


METRICS = (
    Metric("accuracy", "Mean accuracy", "percent", (0.0, 1.0)),
    Metric("flexible", "Mean accuracy, flexible", "percent", (0.0, 1.0)),
    Metric("mean_score", "Mean score", "decimal"),
    Metric("score_variance", "Variance within a group", "decimal", of_groups=True),
    Metric("group_entropy_bits", "Entropy of a group's mean accuracy (bits)", "decimal", (0.0, 1.0), of_groups=True),
    Metric("score_entropy_bits", "Entropy of a group's mean score (bits)", "decimal", (0.0, 1.0), of_groups=True),
    Metric("token_entropy_nats", "Token entropy (nats)", "decimal"),
    Metric("mean_tokens", "Response length (tokens)", "tokens"),
    Metric("truncated", "Truncated responses", "percent", (0.0, 1.0)),
)


def pass_name(k: int) -> str:
    """The name of pass@k in reports."""
    return f"pass@{k}"


def metrics_of(n: int, measure: str = "accuracy") -> list[Metric]:
    """The metrics of groups of n responses: accuracy, score, pass@k, then the others.

    Args:
        measure: "score" leaves out what only a reward that states an accuracy has.
    """
    passes = [Metric(pass_name(k), f"pass@{k}", "percent", (0.0, 1.0)) for k in ks_for(n)]
    others = [metric for metric in METRICS[3:] if n > 1 or not metric.of_groups]
    every = [*METRICS[:3], *passes, *others]
    return every if measure == "accuracy" else [metric for metric in every if not metric.of_accuracy]


def reward_metric(name: str) -> Metric:
    """The metric of one of several rewards, `reward/<name>`."""
    return Metric(name, f"Mean of {name}", "decimal")


@dataclass(frozen=True, slots=True)
class QuestionStats:
    """Figures of one question's group.

    Attributes:
        row, n: row of the data file, size of the group.
        right: how many responses are right; None, as `accuracy` and what rests on it, where none is stated.
        accuracy: mean of the reward's accuracy.
        flexible: the same where answers outside a marker count too; None where the reward has no such switch.
        mean_score, score_variance: of the rewards; the variance is the population's, since the group is all there is.
        group_entropy_bits: `binary_entropy_bits` of the mean accuracy: how evenly right and wrong are split.
        score_entropy_bits: the same of the mean score. Partial credit lifts it even where all responses agree, which
            is why the probe's verdict is on the former; for rewards of 0 and 1 the two are one.
        token_entropy_nats: see the function of that name.
        pass_at: k -> unbiased pass@k.
        truncated, mean_tokens: share of responses that the limit cut off; mean length, None where it is not known.
        reasons: reason code -> responses.
        rewards: mean of each of several rewards, `reward/<name>`.
    """

    row: int
    n: int
    right: int | None
    accuracy: float | None
    mean_score: float
    score_variance: float
    group_entropy_bits: float | None
    score_entropy_bits: float | None
    token_entropy_nats: float | None
    pass_at: dict[int, float]
    truncated: float
    mean_tokens: float | None
    reasons: dict[str, int]
    flexible: float | None = None
    rewards: dict[str, float] = field(default_factory=dict)

    @property
    def outcome(self) -> str:
        """ "all right", "all wrong" or "mixed"; "scored" where the reward states no accuracy."""
        if self.right is None:
            return "scored"
        return "all right" if self.right == self.n else "mixed" if self.right else "all wrong"


def question_stats(row: int, responses: Sequence[Response], scores: Sequence[Score]) -> QuestionStats:
    """Figures of one group; `responses` and `scores` have the same length n >= 1."""
    n = len(scores)
    values = [score.value for score in scores]
    mean = fmean(values)
    stated = [score.accuracy for score in scores if score.accuracy is not None]
    accuracy = fmean(stated) if len(stated) == n else None
    right = None if accuracy is None else sum(bool(score.right) for score in scores)
    flexible = [score.flexible for score in scores if score.flexible is not None]
    tokens = [response.tokens for response in responses if response.tokens is not None]
    return QuestionStats(
        row=row,
        n=n,
        right=right,
        accuracy=accuracy,
        mean_score=mean,
        score_variance=fmean((value - mean) ** 2 for value in values),
        group_entropy_bits=None if accuracy is None else binary_entropy_bits(accuracy),
        score_entropy_bits=None if accuracy is None else binary_entropy_bits(mean),
        token_entropy_nats=token_entropy_nats(responses),
        pass_at={} if right is None else {k: pass_at_k(n, right, k) for k in ks_for(n)},
        truncated=fmean(response.truncated for response in responses),
        mean_tokens=fmean(tokens) if len(tokens) == n else None,
        reasons=dict(Counter(score.reason for score in scores)),
        flexible=fmean(flexible) if len(flexible) == n else None,
        rewards={
            name: fmean(float(score.parts.get(name, 0.0)) for score in scores)
            for name in dict.fromkeys(name for score in scores for name in score.parts)
            if name.startswith(PART)
        },
    )


def binary_entropy_bits(p: float) -> float:
    """Entropy of a coin that shows heads with probability p, in bits; p outside [0, 1] is clipped."""
    p = min(1.0, max(0.0, p))
    return 0.0 if p in (0.0, 1.0) else -p * math.log2(p) - (1.0 - p) * math.log2(1.0 - p)


def token_entropy_nats(responses: Sequence[Response]) -> float | None:
    """Minus the mean log-probability of the sampled tokens: an unbiased estimate of the mean token entropy, in nats.

    None where a response has no log-probability or no token count. Tokens are weighted alike, whatever their response.
    """
    if any(response.logprob is None or not response.tokens for response in responses):
        return None
    return -sum(response.logprob or 0.0 for response in responses) / sum(response.tokens or 0 for response in responses)


@dataclass(frozen=True)
class Share:
    """So many of all groups, and their share."""

    count: int
    share: float


@dataclass(frozen=True)
class Groups:
    """Groups by outcome; `zero_variance` are those whose scores agree and which therefore have no advantage."""

    all_right: Share
    mixed: Share
    all_wrong: Share
    zero_variance: Share


@dataclass(frozen=True)
class Histogram:
    """Questions between neighbouring edges; there is one edge more than counts."""

    edges: list[float]
    counts: list[int]


@dataclass(frozen=True)
class LengthHistogram:
    """Right and other responses between neighbouring numbers of tokens; none is right without a stated accuracy."""

    edges: list[int]
    right: list[int]
    wrong: list[int]

    @property
    def together(self) -> Histogram:
        """All responses."""
        counts = [right + wrong for right, wrong in zip(self.right, self.wrong, strict=True)]
        return Histogram([float(edge) for edge in self.edges], counts)


@dataclass(frozen=True)
class Histograms:
    """For the figures of the report; None where a value is not known, or of groups and there are none."""

    tokens: LengthHistogram | None
    mean_score: Histogram | None


@dataclass(frozen=True)
class PassSummary:
    """The figures of one pass over the questions, "greedy" or "sampled".

    Attributes:
        figures: metric's name -> mean over the questions with its interval; None where a question lacks the metric.
        groups: None for one response per question.
        reasons: reason code -> responses, most frequent first.
        histograms: for the figures of the report.
        measure: "accuracy", or "score" where the reward states none.
        different: questions with a prompt and truth of their own.
        failures: responses that the reward could not judge.
        first_failure: the error of the first of them.
    """

    sampling: Sampling
    questions: int
    responses: int
    figures: dict[str, Interval | None]
    groups: Groups | None
    reasons: dict[str, int]
    histograms: Histograms
    measure: str
    different: int
    failures: int
    first_failure: str

    def mean(self, name: str) -> Interval:
        """Return the figure of a metric that every question has; ValueError where one lacks it."""
        figure = self.figures[name]
        if figure is None:
            raise ValueError(f"not every question has {name}")
        return figure

    def grouped(self) -> Groups:
        """Return the groups by outcome; ValueError for one response per question."""
        if self.groups is None:
            raise ValueError("one response per question makes no groups")
        return self.groups


class Collector:
    """Adds up a pass: `add` each question in the file's order, then `summary`. Memory: one number per metric.

    Args:
        clusters: of each question, its prompt and truth, in the file's order; None where all are different.
    """

    def __init__(self, sampling: Sampling, clusters: Sequence[int] | None = None) -> None:
        self.sampling, self.clusters = sampling, clusters
        self.columns = {metric.name: array("d") for metric in metrics_of(sampling.n)}
        self.rewards: list[str] = []
        self.flat: list[bool] = []
        self.reasons: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()
        self.lengths: dict[bool | None, Counter[int]] = {True: Counter(), False: Counter(), None: Counter()}
        self.failures, self.first_failure = 0, ""

    def add(self, stats: QuestionStats, responses: Sequence[Response], scores: Sequence[Score]) -> None:
        """Take in one question."""
        for name in stats.rewards:
            if name not in self.columns:
                self.rewards.append(name)
                self.columns[name] = array("d", [0.0] * len(self.flat))
        for name, column in self.columns.items():
            if name.startswith(PART):
                value: float | None = stats.rewards.get(name, 0.0)
            else:
                value = stats.pass_at.get(int(name[5:])) if name.startswith("pass@") else getattr(stats, name)
            column.append(MISSING if value is None else value)
        self.flat.append(is_flat(score.value for score in scores))
        self.reasons.update(stats.reasons)
        self.outcomes[stats.outcome] += 1
        for response, score in zip(responses, scores, strict=True):
            if response.tokens is not None:
                self.lengths[score.right][response.tokens] += 1
            if score.failure:
                self.failures += 1
                self.first_failure = self.first_failure or score.failure

    @property
    def measure(self) -> str:
        """ "accuracy", or "score" where the reward states none."""
        return "accuracy" if self.column("accuracy") is not None else "score"

    @property
    def metrics(self) -> list[Metric]:
        """The metrics that the reward allows."""
        return [*metrics_of(self.sampling.n, self.measure), *map(reward_metric, self.rewards)]

    @property
    def questions(self) -> int:
        """Return how many questions were added."""
        return len(self.flat)

    def column(self, name: str) -> np.ndarray | None:
        """One value per question, or None where a question lacks it."""
        if name not in self.columns:
            return None
        values = np.asarray(self.columns[name])
        return None if np.isnan(values).any() else values

    @cached_property
    def figures(self) -> dict[str, Interval | None]:
        """Each metric's mean with its interval; for when every question was added."""
        columns = {metric: self.column(metric.name) for metric in self.metrics}
        return {
            metric.name: None
            if values is None
            else mean_with_interval(values, bounds=metric.bounds, seed=self.sampling.seed, clusters=self.clusters)
            for metric, values in columns.items()
        }

    def summary(self) -> PassSummary:
        """Every figure of the pass."""
        grouped, questions = self.sampling.n > 1, self.questions
        return PassSummary(
            sampling=self.sampling,
            questions=questions,
            responses=questions * self.sampling.n,
            figures=self.figures,
            groups=self._groups() if grouped else None,
            reasons=dict(self.reasons.most_common()),
            histograms=Histograms(
                tokens=self._token_lengths(),
                mean_score=self._mean_scores() if grouped else None,
            ),
            measure=self.measure,
            different=questions if self.clusters is None else len(set(self.clusters)),
            failures=self.failures,
            first_failure=self.first_failure,
        )

    def _groups(self) -> Groups:
        questions = self.questions
        counts = [self.outcomes[outcome] for outcome in ("all right", "mixed", "all wrong")]
        counts.append(sum(self.flat))
        return Groups(*(Share(count, count / questions) for count in counts))

    def _token_lengths(self) -> LengthHistogram | None:
        longest = max(self.lengths[True] | self.lengths[False] | self.lengths[None], default=None)
        if longest is None:
            return None
        # Whole tokens, and the same width for every pass under one limit, so that two models compare.
        width = math.ceil(self.sampling.max_tokens / LENGTH_BINS)
        edges = list(range(0, longest + width + 1, width))

        def binned(lengths: Counter[int]) -> list[int]:
            return np.histogram(list(lengths), edges, weights=list(lengths.values()))[0].astype(int).tolist()

        return LengthHistogram(edges, binned(self.lengths[True]), binned(self.lengths[False] + self.lengths[None]))

    def _mean_scores(self) -> Histogram:
        """Of the questions' mean scores, from 0 or below to 1 or above."""
        values = np.asarray(self.columns["mean_score"])
        counts, ends = np.histogram(values, BINS, range=(min(values.min(), 0.0), max(values.max(), 1.0)))
        return Histogram(ends.tolist(), counts.tolist())
