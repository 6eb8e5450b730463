"""Figures of an evaluation: those of each question's group, and their means with intervals over the questions.

A new metric is one entry in `METRICS` and one in `question_figures`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

import numpy as np

from recipes.evaluation.sampling import Response, Sampling
from recipes.evaluation.scoring import Score
from recipes.rewards.contract import RIGHT, SAME
from recipes.rewards.metrics import PART, is_flat, numbers_of
from recipes.statistics import Interval, ks_for, mean_with_interval, pass_at_k

SHARE = (0.0, 1.0)


@dataclass(frozen=True)
class Metric:
    """A number that a question may have."""

    label: str  # for tables
    style: str = "decimal"  # how it is written, a key of `recipes.evaluation.report.FORMATS`
    bounds: tuple[float, float] | None = None  # the smallest and largest value of a question; None: no such bound


METRICS = {
    "accuracy": Metric("Mean accuracy", "percent", SHARE),
    "flexible": Metric("Mean accuracy, flexible", "percent", SHARE),
    "mean_score": Metric("Mean score"),
    "score_variance": Metric("Variance within a group, scores as 0 to 1"),
    "group_entropy_bits": Metric("Entropy of a group's mean accuracy (bits)", bounds=SHARE),
    "token_entropy_nats": Metric("Token entropy (nats)"),
    "mean_tokens": Metric("Response length (tokens)", "tokens"),
    "truncated": Metric("Truncated responses", "percent", SHARE),
}


def metric_of(name: str) -> Metric:
    """The metric of a figure's name: of `METRICS`, pass@k, or the mean of one of several rewards, `reward/<name>`."""
    if name.startswith("pass@"):
        return Metric(name, "percent", SHARE)
    return Metric(f"Mean of {name}") if name.startswith(PART) else METRICS[name]


def question_figures(responses: Sequence[Response], scores: Sequence[Score]) -> dict[str, float]:
    """Figures of one question's group, by name; those that are not known are absent.

    - accuracy: the mean of the accuracies that the reward states; pass@k and group_entropy_bits exist only with it.
    - flexible: the mean accuracy where answers outside a marker count too, if the reward has the argument `flexible`.
    - score_variance: the population's, since the group is all there is, divided by the square of the group's largest
      minus smallest score. So it is free of the scores' scale, as GRPO is, which divides by the group's deviation.
    - group_entropy_bits: the entropy of a Bernoulli variable whose mean is the accuracy. The mean score does not serve:
      with partial credit its entropy is above 0 even where all responses agree.
    - truncated: the share of responses that the limit cut off.
    """
    from scipy.stats import entropy

    n = len(scores)
    values = [score.value for score in scores]
    mean = fmean(values)
    accuracy = _mean_of_all(score.accuracy for score in scores)
    figures: dict[str, float | None] = {
        "accuracy": accuracy,
        "flexible": _mean_of_all(score.flexible for score in scores),
        "mean_score": mean,
    }
    if accuracy is not None:
        right = sum(score.right is True for score in scores)
        figures |= {f"pass@{k}": pass_at_k(n, right, k) for k in ks_for(n)}
    if n > 1:
        variance, span = fmean((value - mean) ** 2 for value in values), max(values) - min(values)
        figures["score_variance"] = 0.0 if is_flat(values) else variance / span**2
        if accuracy is not None:
            figures["group_entropy_bits"] = float(entropy([accuracy, max(0.0, 1.0 - accuracy)], base=2))
    figures["token_entropy_nats"] = token_entropy_nats(responses)
    figures["mean_tokens"] = _mean_of_all(response.tokens for response in responses)
    figures["truncated"] = fmean(response.truncated for response in responses)
    parts = [numbers_of(score.parts) for score in scores]
    for name in dict.fromkeys(name for each in parts for name in each):
        figures[name] = fmean(each.get(name, 0.0) for each in parts)
    return {name: value for name, value in figures.items() if value is not None}


def _mean_of_all(values: Iterable[float | None]) -> float | None:
    """The mean, or None where a value is not known."""
    every = list(values)
    known = [value for value in every if value is not None]
    return fmean(known) if len(known) == len(every) else None


def token_entropy_nats(responses: Sequence[Response]) -> float | None:
    """Minus the mean log-probability of the sampled tokens: an estimate of the mean token entropy, in nats.

    None where a response has no log-probability, no token count or no tokens. Every token has the same weight, however
    long its response is.
    """
    if any(response.logprob is None or not response.tokens for response in responses):
        return None
    return -sum(response.logprob or 0.0 for response in responses) / sum(response.tokens or 0 for response in responses)


@dataclass(frozen=True)
class PassSummary:
    """The figures of one pass over the questions, "greedy" or "sampled".

    A group whose scores are all equal (without variance) has advantages of 0 and gives GRPO no gradient.
    """

    sampling: Sampling
    measure: str  # "accuracy", or "score" where the reward states none
    questions: int
    different: int  # number of different pairs of prompt and truth among the questions
    responses: int
    figures: dict[str, Interval]  # metric's name -> mean over the questions with its interval
    # Outcome -> number of groups: "without variance", and where the reward states an accuracy "all right", "mixed" and
    # "all wrong"; empty for groups of one.
    groups: dict[str, int]
    reasons: dict[str, int]  # reason code -> responses, most frequent first
    failures: int  # responses that the reward could not judge
    first_failure: str  # the error of the first of them

    @property
    def graded(self) -> bool:
        """Return whether some accuracy lies between 0 and 1; where none does, the mean accuracy is pass@1."""
        stated = self.measure == "accuracy"
        return stated and self.figures["accuracy"].value - self.figures["pass@1"].value > SAME

    @property
    def flat_share(self) -> float:
        """The share of groups without variance."""
        return self.groups["without variance"] / self.questions


def main_metric(summaries: Iterable[PassSummary]) -> str:
    """The metric that decides: pass@1, the accuracy where one lies between 0 and 1, or the mean score without any."""
    every = list(summaries)
    if any(summary.measure == "score" for summary in every):
        return "mean_score"
    return "accuracy" if any(summary.graded for summary in every) else "pass@1"


class Collector:
    """Collects the figures of a pass; `add` each question, in the data file's order, before other attributes are read.

    Args:
        clusters: for each question, in the file's order, an id of its prompt and truth; None where all are different.
    """

    def __init__(self, sampling: Sampling, clusters: Sequence[int] | None = None) -> None:
        self.sampling, self.clusters = sampling, clusters
        self.questions: list[dict[str, float]] = []
        self.flat: list[bool] = []
        self.reasons: Counter[str] = Counter()
        self.failures, self.first_failure = 0, ""

    def add(self, responses: Sequence[Response], scores: Sequence[Score]) -> dict[str, float]:
        """Take in one question's group; returns its figures."""
        figures = question_figures(responses, scores)
        self.questions.append(figures)
        self.flat.append(is_flat(score.value for score in scores))
        self.reasons.update(score.reason for score in scores)
        for score in scores:
            if score.failure:
                self.failures += 1
                self.first_failure = self.first_failure or score.failure
        return figures

    @cached_property
    def columns(self) -> dict[str, np.ndarray]:
        """Metric -> one value per question, for the metrics that every question has.

        Where the reward failed for a whole group, each `reward/<name>` is 0 there.
        """
        names = dict.fromkeys(name for figures in self.questions for name in figures)
        values = {
            name: [figures.get(name, 0.0 if name.startswith(PART) else None) for figures in self.questions]
            for name in names
        }
        return {name: np.asarray(column, dtype=float) for name, column in values.items() if None not in column}

    @property
    def measure(self) -> str:
        """ "accuracy", or "score" where the reward states none."""
        return "accuracy" if "accuracy" in self.columns else "score"

    def interval(self, values: np.ndarray, bounds: tuple[float, float] | None) -> Interval:
        """The mean of one value per question with its interval."""
        return mean_with_interval(values, bounds=bounds, seed=self.sampling.seed, clusters=self.clusters)

    @cached_property
    def summary(self) -> PassSummary:
        """Every figure of the pass."""
        count = len(self.questions)
        return PassSummary(
            sampling=self.sampling,
            measure=self.measure,
            questions=count,
            different=count if self.clusters is None else len(set(self.clusters)),
            responses=count * self.sampling.n,
            figures={name: self.interval(values, metric_of(name).bounds) for name, values in self.columns.items()},
            groups=self._groups() if self.sampling.n > 1 else {},
            reasons=dict(self.reasons.most_common()),
            failures=self.failures,
            first_failure=self.first_failure,
        )

    def _groups(self) -> dict[str, int]:
        groups = {"without variance": sum(self.flat)}
        if self.measure == "score":
            return groups
        means = self.columns["accuracy"]
        right, wrong = means >= RIGHT, means <= SAME
        outcomes = {"all right": right, "mixed": ~(right | wrong), "all wrong": wrong}
        return {outcome: int(which.sum()) for outcome, which in outcomes.items()} | groups
