"""Responses of a model with what their reward says, the figures of each question's group, and their means.

A new metric is one entry in `METRICS` and one in `question_figures`.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Any

import numpy as np

from recipes.data.rows import first_id
from recipes.dumps import TURNS, as_text
from recipes.errors import RecipeError
from recipes.rewards.contract import RIGHT, SAME, Answer, is_right
from recipes.rewards.metrics import PART, is_flat, numbers_of
from recipes.statistics import Interval, ks_for, mean_with_interval, pass_at_k


@dataclass(frozen=True)
class Sampling:
    """Everything that decides which responses a model gives to a prompt."""

    n: int  # responses per question
    temperature: float  # 0 is greedy
    top_p: float = 1.0  # nucleus size; 1 switches it off
    max_tokens: int = 1024  # longest response, in tokens
    seed: int = 0  # one number for the whole evaluation; each question gets its own through `request_seed`
    top_k: int = -1  # number of most likely tokens to sample from; -1 for all

    def __post_init__(self) -> None:
        if self.greedy and self.n > 1:
            fix = "use a temperature above 0, such as the 1.0 that training samples at"
            raise RecipeError(f"temperature 0 gives the same answer {self.n} times", where="sampling", fix=fix)

    @property
    def greedy(self) -> bool:
        """Return whether the most likely token is always taken."""
        return self.temperature == 0.0

    def request_seed(self, row: int) -> int:
        """Return the row's seed, in [0, 2^31); it does not depend on the other rows of the evaluation."""
        return int.from_bytes(hashlib.sha256(f"{self.seed}:{row}".encode()).digest()[:4], "big") >> 1


@dataclass(frozen=True, slots=True)
class Response:
    text: str  # without special tokens; with tools the model's last turn
    tokens: int | None  # its length, tokens of tools among them; None where the generator does not report it
    truncated: bool  # whether the limit on tokens cut it off
    # Sum of its tokens' log-probabilities (nats) under the distribution that was sampled from, or None.
    logprob: float | None
    # Of a response with tools, what its reward gets besides (`recipes/dumps.py`); None without tools.
    conversation: dict[str, Any] | None = None

    @property
    def shown(self) -> str:
        """The whole response for a reader."""
        return as_text(self.conversation[TURNS]) if self.conversation else self.text


@dataclass(frozen=True, slots=True)
class Group:
    """All responses to one question; `row` is the question's row in its data file."""

    row: int
    responses: tuple[Response, ...]


def question_key(prompt: str, truth: str, row_id: str, images: bool) -> tuple[str, ...]:
    """A key that responses to the same question share, also those of different rows: prompt and truth.

    Prompts with images may be alike where the images differ: then the ids must be the same too, apart from the number
    of a repeated row.
    """
    return (prompt, truth, first_id(row_id)) if images else (prompt, truth)


@dataclass(frozen=True, slots=True)
class ScoredResponse(Answer):
    """A response with its reward's answer: score, accuracy and parts; `value` is the accuracy, or else the score."""

    reason: str = ""  # the reward's reason code, or "right", "wrong", "scored", `scoring.FAILED`; empty in a run's dump
    # Accuracy where an answer outside a marker counts too; None where the reward has no such switch.
    flexible: float | None = None
    failure: str = ""  # the error where the reward raised or its answer breaks the contract; else empty
    tokens: int | None = None  # as in `Response`; None and unknown in a run's dump, also the next two
    truncated: bool | None = None
    logprob: float | None = None
    # The following are known of a response that was read from a file.
    text: str = ""  # what was answered
    prompt: str = ""  # what was asked
    truth: str = ""  # the ground truth
    group: str = ""  # a key that the responses to one prompt of a batch share
    row_id: str | None = None  # the id of the prompt's row in the data; None where the file has no id for it
    question: tuple[str, ...] = ()  # its `question_key`

    @property
    def right(self) -> bool | None:
        """Return whether the response is right; None where the reward states no accuracy."""
        return is_right(self.accuracy)


SHARE = (0.0, 1.0)
# Style of a metric -> factor, format of a value, format of a difference.
FORMATS = {
    "percent": (100, "{:.1f}%", "{:+.1f} points"),
    "hundredths": (100, "{:.1f}", "{:+.1f} points"),  # where a heading has the unit
    "decimal": (1, "{:.3f}", "{:+.3f}"),
    "tokens": (1, "{:.1f}", "{:+.1f}"),
}
ABSENT = "–"


@dataclass(frozen=True)
class Cell:
    """A figure as text; `low` and `high` are empty without an interval; `sure` says that the interval excludes 0."""

    value: str
    low: str = ""
    high: str = ""
    sure: bool = False

    def __str__(self) -> str:
        return f"{self.value} ({self.low} to {self.high})" if self.low else self.value

    @property
    def ends(self) -> str:
        """The interval in words."""
        return f"95% interval {self.low} to {self.high}" if self.low else "no interval"


@dataclass(frozen=True)
class Metric:
    """A number that a question may have."""

    label: str  # for tables
    style: str = "decimal"  # how it is written, a key of `FORMATS`
    bounds: tuple[float, float] | None = None  # the smallest and largest value of a question; None: no such bound

    def cell(self, interval: Interval | None, *, difference: bool = False) -> Cell:
        """An interval as text; only the value, not `low` and `high`, has the unit "points"."""
        if interval is None:
            return Cell(ABSENT)
        factor, *formats = FORMATS[self.style]
        form = formats[difference]
        value = form.format(factor * interval.value)
        if interval.low is None or interval.high is None:
            return Cell(value)
        low, high = (form.format(factor * end).removesuffix(" points") for end in (interval.low, interval.high))
        return Cell(value, low, high, interval.excludes_zero)


BY_MEASURE = {"accuracy": Metric("accuracy, %", "hundredths", SHARE), "score": Metric("score")}
"""Measure of a validation -> its metric."""
METRICS = {
    "accuracy": Metric("Mean accuracy", "percent", SHARE),
    "flexible": Metric("Mean accuracy, flexible", "percent", SHARE),
    "mean_score": Metric("Mean score"),
    "score_variance": Metric("Variance within a group, scores as 0 to 1"),
    "group_entropy_bits": Metric("Entropy of a group's mean accuracy (bits)", bounds=SHARE),
    "token_entropy_nats": Metric("Avg entropy of tokens (nats)"),
    "mean_tokens": Metric("Response length (tokens)", "tokens"),
    "truncated": Metric("Truncated responses", "percent", SHARE),
}


def metric_of(name: str) -> Metric:
    """The metric of a figure's name: of `METRICS`, pass@k, or the mean of one of several rewards, `reward/<name>`."""
    if name.startswith("pass@"):
        return Metric(name, "percent", SHARE)
    return Metric(f"Mean of {name}") if name.startswith(PART) else METRICS[name]


def question_figures(responses: Sequence[ScoredResponse]) -> dict[str, float]:
    """Figures of one question's group, by name; those that are not known are absent.

    docs/EVALUATION_DESIGN.md defines them. pass@k and group_entropy_bits exist only where the reward states accuracies.
    The entropy is the accuracy's: with partial credit that of the mean score is above 0 even where all responses agree.
    """
    n, values = len(responses), [each.score for each in responses]
    mean, accuracy = fmean(values), _mean_of_all(each.accuracy for each in responses)
    figures: dict[str, float | None] = {"accuracy": accuracy}
    figures |= {"flexible": _mean_of_all(each.flexible for each in responses), "mean_score": mean}
    if accuracy is not None:
        right = sum(each.right is True for each in responses)
        figures |= {f"pass@{k}": pass_at_k(n, right, k) for k in ks_for(n)}
    if n > 1:
        variance, span = fmean((value - mean) ** 2 for value in values), max(values) - min(values)
        figures["score_variance"] = 0.0 if is_flat(values) else variance / span**2
        if accuracy is not None:
            shares = (accuracy, max(0.0, 1.0 - accuracy))
            figures["group_entropy_bits"] = sum(-share * math.log(share) for share in shares if share) / math.log(2)
    figures["token_entropy_nats"] = token_entropy_nats(responses)
    figures["mean_tokens"] = _mean_of_all(each.tokens for each in responses)
    figures["truncated"] = _mean_of_all(each.truncated for each in responses)
    parts = [numbers_of(each.parts) for each in responses]
    for name in dict.fromkeys(name for each in parts for name in each):
        figures[name] = fmean(each.get(name, 0.0) for each in parts)
    return {name: value for name, value in figures.items() if value is not None}


def _mean_of_all(values: Iterable[float | None]) -> float | None:
    """The mean, or None where a value is not known."""
    every = list(values)
    known = [value for value in every if value is not None]
    return fmean(known) if len(known) == len(every) else None


def token_entropy_nats(responses: Sequence[ScoredResponse]) -> float | None:
    """Minus the mean log-probability of the sampled tokens: an estimate of the mean token entropy, in nats.

    Every token has the same weight. None where a response has no log-probability or no tokens.
    """
    if any(each.logprob is None or not each.tokens for each in responses):
        return None
    return -sum(each.logprob or 0.0 for each in responses) / sum(each.tokens or 0 for each in responses)


@dataclass(frozen=True)
class Summary:
    """The figures of one pass over the questions, such as a validation.

    A group whose scores are all equal (without variance) has advantages of 0 and gives GRPO no gradient.
    """

    sampling: Sampling | None  # None where it is not known
    measure: str  # "accuracy", or "score" where the reward states none
    questions: int
    different: int  # number of different questions among them
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


def main_metric(summaries: Iterable[Summary]) -> str:
    """The metric that decides: pass@1, the accuracy where one lies between 0 and 1, or the mean score without any."""
    every = list(summaries)
    if any(summary.measure == "score" for summary in every):
        return "mean_score"
    return "accuracy" if any(summary.graded for summary in every) else "pass@1"


class Measures:
    """Collects figures; `add` each question's group, in the file's order, before other attributes are read.

    `sampling` is that of the responses, where it is known; its seed is that of the bootstrap.
    """

    def __init__(self, sampling: Sampling | None = None) -> None:
        self.sampling, self.seed = sampling, sampling.seed if sampling else 0
        self.questions: list[dict[str, float]] = []
        self.clusters: list[Hashable] = []
        self.flat: list[bool] = []
        self.sizes: list[int] = []
        self.reasons: Counter[str] = Counter()
        self.failures, self.first_failure = 0, ""

    def add(self, responses: Sequence[ScoredResponse], question: Hashable = None) -> dict[str, float]:
        """Take in one question's group, and return its figures.

        `question` is the same for equal questions, and None for one that differs from all others.
        """
        figures = question_figures(responses)
        self.clusters.append(len(self.clusters) if question is None else question)
        self.questions.append(figures)
        self.flat.append(is_flat(each.score for each in responses))
        self.sizes.append(len(responses))
        self.reasons.update(each.reason for each in responses)
        for failure in filter(None, (each.failure for each in responses)):
            self.failures += 1
            self.first_failure = self.first_failure or failure
        return figures

    @cached_property
    def columns(self) -> dict[str, np.ndarray]:
        """Metric -> one value per question, for the metrics that every question has.

        Where the reward failed for a whole group, each `reward/<name>` is 0 there.
        """
        names = dict.fromkeys(name for figures in self.questions for name in figures)
        absent = {name: 0.0 if name.startswith(PART) else None for name in names}
        values = {name: [figures.get(name, absent[name]) for figures in self.questions] for name in names}
        return {name: np.asarray(column, dtype=float) for name, column in values.items() if None not in column}

    @property
    def measure(self) -> str:
        """ "accuracy", or "score" where the reward states none."""
        return "accuracy" if "accuracy" in self.columns else "score"

    @property
    def values(self) -> np.ndarray:
        """Mean accuracy of each question, or mean score."""
        return self.columns["accuracy" if self.measure == "accuracy" else "mean_score"]

    @property
    def different(self) -> int:
        """The number of different questions."""
        return len(set(self.clusters))

    def interval(self, values: np.ndarray, bounds: tuple[float, float] | None) -> Interval:
        """The mean of one value per question with its interval."""
        return mean_with_interval(values, bounds=bounds, seed=self.seed, clusters=self.clusters)

    @cached_property
    def mean(self) -> Interval:
        """Mean accuracy or score, with an interval over the questions."""
        return self.interval(self.values, BY_MEASURE[self.measure].bounds)

    @cached_property
    def summary(self) -> Summary:
        groups = {}
        if self.measure == "accuracy" and max(self.sizes) > 1:
            means = self.columns["accuracy"]
            right, wrong = means >= RIGHT, means <= SAME
            outcomes = {"all right": right, "mixed": ~(right | wrong), "all wrong": wrong}
            groups = {outcome: int(which.sum()) for outcome, which in outcomes.items()}
        if max(self.sizes) > 1:
            groups["without variance"] = sum(self.flat)
        return Summary(
            sampling=self.sampling,
            measure=self.measure,
            questions=len(self.questions),
            different=self.different,
            responses=sum(self.sizes),
            figures={name: self.interval(values, metric_of(name).bounds) for name, values in self.columns.items()},
            groups=groups,
            reasons=dict(self.reasons.most_common()),
            failures=self.failures,
            first_failure=self.first_failure,
        )
