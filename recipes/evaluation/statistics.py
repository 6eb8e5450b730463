"""Metrics of groups of responses, intervals and paired tests."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np

from recipes.evaluation.records import Response
from recipes.evaluation.scoring import Score

CONFIDENCE = 0.95
RESAMPLES = 9999
# BCa needs n x n numbers for its jackknife, and differs from the plain percentiles only where n is small.
BCA_UP_TO = 2000
BATCH_NUMBERS = 500_000


def mean_with_interval(values: Sequence[float], *, bounds: tuple[float, float] | None = None, seed: int = 0) -> Any:
    """Mean of one value per question with its interval: `{"value", "low", "high", "method"}`.

    Args:
        values: one finite number per question; empty gives None.
        bounds: smallest and largest value that a question can have. They give an interval where every value is the
            same bound, and a bootstrap would claim certainty.
        seed: of the bootstrap's resampling.

    Values that are all 0 or 1 get the Wilson score interval, others a bootstrap over questions (BCa). `low` and `high`
    are None where nothing can be said, such as for a single question whose value has no bounds.
    """
    data = np.asarray(values, dtype=np.float64)
    if data.size == 0:
        return None
    if bounds == (0.0, 1.0) and np.isin(data, (0.0, 1.0)).all():
        return _wilson(int(data.sum()), data.size)
    if np.ptp(data) == 0.0:
        return _constant(float(data[0]), data.size, bounds)
    return _bootstrap(data, seed)


def mcnemar(won: int, lost: int) -> dict[str, Any]:
    """Exact two-sided McNemar test on the questions where two models disagree.

    Args:
        won: questions that only the trained model answers fully; lost: that only the base model does.

    Returns:
        `won`, `lost` and `p_value`: the probability, were both models equally good, of a split at least as uneven.
    """
    from scipy.stats import binomtest

    p_value = float(binomtest(won, won + lost, 0.5).pvalue) if won + lost else 1.0
    return {"won": won, "lost": lost, "p_value": p_value}


def _result(value: float, low: float | None, high: float | None, method: str) -> dict[str, Any]:
    return {"value": float(value), "low": low, "high": high, "method": method}


def _wilson(successes: int, n: int) -> dict[str, Any]:
    from scipy.stats import binomtest

    interval = binomtest(successes, n).proportion_ci(CONFIDENCE, method="wilson")
    return _result(successes / n, float(interval.low), float(interval.high), "Wilson")


def _constant(value: float, n: int, bounds: tuple[float, float] | None) -> dict[str, Any]:
    """n equal values: what differs from them has a share under 1 - 0.025^(1/n) with 95% confidence."""
    if bounds is None:
        return _result(value, None, None, "none: every question has the same value")
    share = 1.0 - ((1.0 - CONFIDENCE) / 2.0) ** (1.0 / n)
    low, high = (value + share * (bound - value) for bound in bounds)
    return _result(value, low, high, "exact bound: every question has the same value")


def _bootstrap(data: np.ndarray, seed: int) -> dict[str, Any]:
    from scipy.stats import bootstrap

    method = "BCa" if data.size <= BCA_UP_TO else "percentile"
    interval = bootstrap(
        (data,),
        np.mean,
        n_resamples=RESAMPLES,
        batch=max(1, BATCH_NUMBERS // data.size),
        confidence_level=CONFIDENCE,
        method=method,
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return _result(data.mean(), float(interval.low), float(interval.high), f"bootstrap over questions ({method})")


# Columns with the smallest and largest value that a question can have (None: no such bound).
COLUMNS: dict[str, tuple[float, float] | None] = {
    "accuracy": (0.0, 1.0),
    "mean_score": None,
    "score_variance": None,
    "group_entropy_bits": (0.0, 1.0),
    "score_entropy_bits": (0.0, 1.0),
    "token_entropy_nats": None,
    "mean_tokens": None,
    "truncated": (0.0, 1.0),
}
GROUP_COLUMNS = ("score_variance", "group_entropy_bits", "score_entropy_bits")
MISSING = float("nan")
BINS = 20
LENGTH_BINS = 40


class Collector:
    """Adds up a pass of n responses up to `max_tokens`: `add` each question in the file's order, then `summary`."""

    def __init__(self, n: int, max_tokens: int) -> None:
        self.n, self.max_tokens = n, max_tokens
        self.columns = {name: array("d") for name in COLUMNS}
        self.columns |= {f"pass_at_{k}": array("d") for k in ks_for(n)}
        self.reasons: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()
        self.lengths: dict[bool, Counter[int]] = {True: Counter(), False: Counter()}

    def add(self, stats: QuestionStats, responses: Sequence[Response], scores: Sequence[Score]) -> None:
        """Take in one question."""
        for name in COLUMNS:
            value = getattr(stats, name)
            self.columns[name].append(MISSING if value is None else value)
        for k, value in stats.pass_at.items():
            self.columns[f"pass_at_{k}"].append(value)
        self.reasons.update(stats.reasons)
        self.outcomes[stats.outcome] += 1
        for response, score in zip(responses, scores, strict=True):
            if response.tokens is not None:
                self.lengths[score.full][response.tokens] += 1

    def column(self, name: str) -> np.ndarray | None:
        """One value per question, or None where a question lacks it."""
        values = np.asarray(self.columns[name])
        return None if np.isnan(values).any() else values

    def summary(self, seed: int = 0) -> dict[str, Any]:
        """Every figure of the pass, as the report's JSON holds it; what cannot be known is None."""
        questions = len(self.columns["accuracy"])
        grouped = self.n > 1
        names = {name: bounds for name, bounds in COLUMNS.items() if grouped or name not in GROUP_COLUMNS}
        means = {name: self._mean(name, bounds, seed) for name, bounds in names.items()}
        return {
            "n": self.n,
            "questions": questions,
            "responses": questions * self.n,
            **means,
            "pass_at": {str(k): self._mean(f"pass_at_{k}", (0.0, 1.0), seed) for k in ks_for(self.n)},
            "token_quantiles": self._quantiles(),
            "groups": self._groups() if grouped else None,
            "reasons": dict(self.reasons.most_common()),
            "histograms": self._histograms(grouped),
            "variance_by_accuracy": self._variance_by_accuracy() if grouped else None,
        }

    def _mean(self, name: str, bounds: tuple[float, float] | None, seed: int) -> Any:
        values = self.column(name)
        return None if values is None else mean_with_interval(values, bounds=bounds, seed=seed)

    def _groups(self) -> dict[str, Any]:
        variance = np.asarray(self.columns["score_variance"])
        counts = {key.replace(" ", "_"): self.outcomes[key] for key in ("all right", "mixed", "all wrong")}
        counts["zero_variance"] = int((variance <= NO_VARIANCE).sum())
        return {name: {"count": count, "share": count / variance.size} for name, count in counts.items()}

    def _quantiles(self) -> dict[str, int] | None:
        counts = self.lengths[True] + self.lengths[False]
        total = sum(counts.values())
        if total < len(self.columns["accuracy"]) * self.n:
            return None
        lengths = sorted(counts)
        reached = np.cumsum([counts[length] for length in lengths])
        ranks = {"p5": 0.05, "median": 0.5, "p95": 0.95, "max": 1.0}
        return {name: lengths[int(np.searchsorted(reached, share * total))] for name, share in ranks.items()}

    def _histograms(self, grouped: bool) -> dict[str, Any]:
        lengths = sorted(self.lengths[True] | self.lengths[False])
        histograms: dict[str, Any] = {"tokens": None}
        if lengths:
            # Whole tokens, and the same width for every pass under one limit, so that two models compare.
            width = math.ceil(self.max_tokens / LENGTH_BINS)
            edges = list(range(0, lengths[-1] + width + 1, width))
            histograms["tokens"] = {"edges": edges} | {
                name: _weighted(self.lengths[full], edges) for name, full in (("right", True), ("wrong", False))
            }
        if grouped:
            for name in ("mean_score", "group_entropy_bits", "token_entropy_nats"):
                values = self.column(name)
                histograms[name] = None if values is None else _histogram(values, unit=name != "token_entropy_nats")
        return histograms

    def _variance_by_accuracy(self) -> list[list[float]]:
        """`[accuracy, variance, questions]` for each pair that occurs, rounded to three places."""
        pairs = zip(self.columns["accuracy"], self.columns["score_variance"], strict=True)
        counts = Counter((round(accuracy, 3), round(variance, 3)) for accuracy, variance in pairs)
        return [[accuracy, variance, count] for (accuracy, variance), count in sorted(counts.items())]


def _histogram(values: np.ndarray, *, unit: bool) -> dict[str, list[float]]:
    low, high = float(min(values.min(), 0.0)), float(values.max())
    counts, edges = np.histogram(values, bins=BINS, range=(low, max(high, 1.0) if unit else high or 1.0))
    return {"edges": edges.tolist(), "counts": counts.tolist()}


def _weighted(counts: Counter[int], edges: list[float]) -> list[int]:
    lengths = list(counts)
    return np.histogram(lengths, bins=edges, weights=[counts[length] for length in lengths])[0].astype(int).tolist()


def pass_at_k(n: int, correct: int, k: int) -> float:
    """Probability that k of n responses, drawn without replacement, hold at least one of the `correct` ones.

    Source: Chen et al. 2021, arXiv:2107.03374, equation 1: 1 - C(n - c, k) / C(n, k), here in exact integers. Over
    repeated sampling its mean is 1 - (1 - p)^k, which 1 - (1 - c/n)^k is not.
    """
    if not (1 <= k <= n and 0 <= correct <= n):
        raise ValueError(f"need 1 <= k <= n and 0 <= correct <= n, not k={k}, n={n}, correct={correct}")
    return 1.0 - math.comb(n - correct, k) / math.comb(n, k)


def ks_for(n: int) -> list[int]:
    """The k that are reported for groups of n: powers of two, and n itself."""
    return sorted({2**power for power in range(n.bit_length()) if 2**power <= n} | {n})


def population_variance(values: Sequence[float]) -> float:
    """Mean squared distance from the mean, divided by n and not by n - 1: the group is the whole population."""
    mean = fmean(values)
    return fmean((value - mean) ** 2 for value in values)


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


@dataclass(frozen=True, slots=True)
class QuestionStats:
    """Figures of one question's group.

    Attributes:
        row, n: row of the data file, size of the group.
        mean_score, score_variance: of the rewards; the variance is the population's.
        group_entropy_bits: `binary_entropy_bits` of the mean accuracy: how evenly right and wrong are split.
        score_entropy_bits: the same of the mean score. Partial credit lifts it even where all answers agree, which is
            why the verdict is on the former; for rewards of 0 and 1 the two are one.
        token_entropy_nats: see the function of that name.
        accuracy, full_marks: mean accuracy; how many responses got full marks.
        pass_at: k -> unbiased pass@k, on full marks.
        truncated, mean_tokens: share of responses that the limit cut off; mean length, None where it is not known.
        reasons: reason code -> responses.
    """

    row: int
    n: int
    mean_score: float
    score_variance: float
    group_entropy_bits: float
    score_entropy_bits: float
    token_entropy_nats: float | None
    accuracy: float
    full_marks: int
    pass_at: dict[int, float]
    truncated: float
    mean_tokens: float | None
    reasons: dict[str, int]

    @property
    def outcome(self) -> str:
        """ "all right", "all wrong" or "mixed", by full marks."""
        return "all right" if self.full_marks == self.n else "mixed" if self.full_marks else "all wrong"


# Rewards are sums of binary fractions such as 0.1 + 0.9: equal scores may differ in the last bits.
NO_VARIANCE = 1e-12


def question_stats(row: int, responses: Sequence[Response], scores: Sequence[Score]) -> QuestionStats:
    """Figures of one group; `responses` and `scores` have the same length n >= 1."""
    n = len(scores)
    values = [score.value for score in scores]
    mean = fmean(values)
    accuracy = fmean(score.accuracy for score in scores)
    full = sum(score.full for score in scores)
    tokens = [response.tokens for response in responses if response.tokens is not None]
    return QuestionStats(
        row=row,
        n=n,
        mean_score=mean,
        score_variance=population_variance(values),
        group_entropy_bits=binary_entropy_bits(accuracy),
        score_entropy_bits=binary_entropy_bits(mean),
        token_entropy_nats=token_entropy_nats(responses),
        accuracy=accuracy,
        full_marks=full,
        pass_at={k: pass_at_k(n, full, k) for k in ks_for(n)},
        truncated=fmean(response.truncated for response in responses),
        mean_tokens=fmean(tokens) if len(tokens) == n else None,
        reasons=dict(Counter(score.reason for score in scores)),
    )


FULL = 1.0


def differences(base: Collector, trained: Collector, seed: int = 0) -> dict[str, Any]:
    """Mean of (trained - base) over the questions for each column, with a paired bootstrap interval.

    The two collectors hold the same questions in the same order. A column that one of them lacks gives None.
    """
    bounds = dict(COLUMNS) | {f"pass_at_{k}": (0.0, 1.0) for k in ks_for(base.n)}
    skipped = GROUP_COLUMNS if base.n == 1 else ()
    return {
        name: _difference(base, trained, name, limit, seed) for name, limit in bounds.items() if name not in skipped
    }


def _difference(
    base: Collector, trained: Collector, name: str, bounds: tuple[float, float] | None, seed: int
) -> dict[str, Any] | None:
    before, after = base.column(name), trained.column(name)
    if before is None or after is None:
        return None
    spread = None if bounds is None else (bounds[0] - bounds[1], bounds[1] - bounds[0])
    return mean_with_interval(after - before, bounds=spread, seed=seed)


def won_and_lost(base: Collector, trained: Collector, rows: list[int]) -> dict[str, Any]:
    """Exact McNemar test on full marks under greedy decoding (n = 1), with the rows that changed sides."""
    before, after = (collector.columns["pass_at_1"] for collector in (base, trained))
    outcome = [(row, old >= FULL, new >= FULL) for row, old, new in zip(rows, before, after, strict=True)]
    won = [row for row, old, new in outcome if new and not old]
    lost = [row for row, old, new in outcome if old and not new]
    both_right = sum(old and new for _, old, new in outcome)
    return {
        "mcnemar": mcnemar(len(won), len(lost)),
        "won": won,
        "lost": lost,
        "both_right": both_right,
        "both_wrong": len(outcome) - both_right - len(won) - len(lost),
    }


def conclusion(accuracy: dict[str, Any], pass_at_1: dict[str, Any], p_value: float) -> dict[str, str]:
    """`level` and `words`: whether the trained model is better, by the paired difference in sampled accuracy."""
    value, low, high = accuracy["value"], accuracy["low"], accuracy["high"]
    greedy = f"greedy pass@1 changed by {100 * pass_at_1['value']:+.1f} points (McNemar p = {p_value:.2g})"
    if low is None or low <= 0.0 <= high:
        span = "" if low is None else f", and its 95% interval [{100 * low:+.1f}, {100 * high:+.1f}] holds 0"
        words = f"No difference is shown: accuracy changed by {100 * value:+.1f} points{span}; {greedy}."
        return {"level": "weak", "words": words}
    better = value > 0
    words = (
        f"The trained model is {'better' if better else 'worse'}: accuracy changed by {100 * value:+.1f} points "
        f"(95% interval {100 * low:+.1f} to {100 * high:+.1f}); {greedy}."
    )
    return {"level": "good" if better else "bad", "words": words}
