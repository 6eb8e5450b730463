"""Intervals and tests for what is measured over questions, games, queries or training seeds; scipy does the work."""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from recipes.errors import counted

CONFIDENCE = 0.95
SIGNIFICANCE = 0.05
RESAMPLES = 9999
# BCa needs n x n numbers for its jackknife, and differs from the plain percentiles only where n is small.
BCA_UP_TO = 2000
# With more questions a t-test replaces the sign-flip test, which would take seconds.
SIGN_FLIP_UP_TO = 500
BATCH_NUMBERS = 500_000
# Values that differ by less are equal: 0.3 - 0.2 and 0.4 - 0.3 differ in the last bits only.
NOISE = 1e-9


@dataclass(frozen=True)
class Interval:
    """A mean with its 95% interval; `low` and `high` are None where the data allow none."""

    value: float  # the mean
    low: float | None
    high: float | None
    method: str  # how the interval was made, or why there is none

    @property
    def excludes_zero(self) -> bool:
        """Return whether there is an interval and 0 lies outside of it."""
        return self.low is not None and self.high is not None and not self.low <= 0.0 <= self.high


def mean_with_interval(
    values: Sequence[float] | np.ndarray,
    *,
    bounds: tuple[float, float] | None = None,
    unit: str = "question",
    seed: int = 0,
    clusters: Sequence[Hashable] | None = None,
) -> Interval:
    """Mean of values with its interval. Raises ValueError for no values.

    Values of 0 and 1 whose bounds are (0, 1) get Wilson's interval, others a bootstrap (BCa, or percentile for many
    values). Where all values are equal up to rounding a bootstrap would claim certainty: the bounds give an exact
    interval instead, and without bounds there is none. Where clusters repeat, Student's t over the clusters.

    Args:
        values: one finite number per `unit`, which `Interval.method` names.
        bounds: smallest and largest value that a question can have.
        seed: for the bootstrap's resampling.
        clusters: the question that each value belongs to; None where all are different.
    """
    data = np.asarray(values, dtype=np.float64)
    if data.size == 0:
        raise ValueError("no values")
    different = data.size if clusters is None else len(set(clusters))
    if different == data.size and bounds == (0.0, 1.0) and np.isin(data, (0.0, 1.0)).all():
        from scipy.stats import binomtest

        wilson = binomtest(int(data.sum()), data.size).proportion_ci(CONFIDENCE, method="wilson")
        return Interval(int(data.sum()) / data.size, float(wilson.low), float(wilson.high), "Wilson")
    if np.ptp(data) <= _noise(data):
        return _constant(float(data.mean()), different, bounds, unit)
    if clusters is None or different == data.size:
        interval = _bootstrap(data, unit, seed)
    elif different == 1:
        return Interval(float(data.mean()), None, None, f"none: one {unit}, repeated")
    else:
        from scipy.stats import t

        half = float(t.ppf((1.0 + CONFIDENCE) / 2.0, different - 1)) * standard_error(data, clusters)
        value, method = float(data.mean()), f"Student's t over {different} different {unit}s"
        interval = Interval(value, value - half, value + half, method)
    if bounds is None or interval.low is None or interval.high is None:
        return interval
    return replace(interval, low=max(interval.low, bounds[0]), high=min(interval.high, bounds[1]))


@dataclass(frozen=True)
class Paired:
    """Second minus first, on the same questions."""

    questions: int  # number of pairs
    different: int  # number of distinct questions (clusters) among them
    difference: Interval
    won: int  # number of pairs whose value rose
    lost: int  # number of pairs whose value fell
    p_value: float
    test: str  # how the p-value was made


def paired_difference(
    first: Sequence[float] | np.ndarray,
    second: Sequence[float] | np.ndarray,
    *,
    bounds: tuple[float, float] | None = None,
    clusters: Sequence[Hashable] | None = None,
    seed: int = 0,
) -> Paired:
    """Compare two measurements, one value per question each, in the same order of questions.

    Values of 0 and 1 of different questions are compared by McNemar's exact test, all others by their differences.
    `bounds`, `clusters` and `seed` as in `mean_with_interval`.
    """
    before, after = (np.asarray(values, dtype=np.float64) for values in (first, second))
    changes = after - before
    won, lost = int((changes > NOISE).sum()), int((changes < -NOISE).sum())
    different = len(set(clusters)) if clusters is not None else len(changes)
    if different == len(changes) and np.isin((before, after), (0.0, 1.0)).all():
        difference, p_value, test = difference_of_shares(won, lost, len(changes)), mcnemar(won, lost), "McNemar"
    else:
        span = bounds and (bounds[0] - bounds[1], bounds[1] - bounds[0])
        difference = mean_with_interval(changes, bounds=span, clusters=clusters, seed=seed)
        p_value = paired_p_value(changes, seed, clusters)
        test = "paired permutation test" if different <= SIGN_FLIP_UP_TO else "paired t-test"
    return Paired(len(changes), different, difference, won, lost, p_value, test)


def standard_error(values: Sequence[float] | np.ndarray, clusters: Sequence[Hashable]) -> float:
    """Cluster-robust standard error of a mean (Liang and Zeger 1986); 0 where all clusters have one mean.

    `clusters` has the question of each value; where all are different this is the usual standard error.
    """
    data = np.asarray(values, dtype=np.float64)
    sums, counts = _sums(data, clusters)
    rest, number = sums - data.mean() * counts, len(sums)
    if np.abs(rest).max() <= _noise(data):
        return 0.0
    return math.sqrt(number / (number - 1) * float((rest**2).sum())) / data.size


def counted_questions(questions: int, different: int) -> str:
    """The number of questions in words, and of different ones where some repeat."""
    return counted(questions, "question") + ("" if different == questions else f", {different:,} of them different")


def difference_of_shares(won: int, lost: int, questions: int) -> Interval:
    """Change in the share of right answers between two models on the same `questions`.

    `won` is the number that only the second model answers rightly, `lost` that only the first does. The interval is a
    bootstrap over the questions, widened where the exact interval is wider: Clopper and Pearson's (1934), on the share
    of `won` given the number of questions that changed sides. So the result excludes 0 where the exact McNemar test has
    p < 0.05, and nowhere else. The exact interval alone treats that number as known: where nearly all changes went one
    way it covered the truth in 70% of simulated cases.
    """
    from scipy.stats import binomtest

    changed = won + lost
    values = np.repeat([1.0, -1.0, 0.0], [won, lost, questions - changed])
    interval = mean_with_interval(values, bounds=(-1.0, 1.0))
    if not changed or interval.low is None or interval.high is None:
        return interval
    share = binomtest(won, changed).proportion_ci(CONFIDENCE, method="exact")
    low, high = ((2.0 * float(end) - 1.0) * changed / questions for end in (share.low, share.high))
    # With few questions the bootstrap's end may lie on 0 itself, or beyond it, where the exact one does not.
    widened_low = low if interval.low <= 0.0 < low else min(low, interval.low)
    widened_high = high if high < 0.0 <= interval.high else max(high, interval.high)
    return replace(interval, low=widened_low, high=widened_high)


def mcnemar(won: int, lost: int) -> float:
    """McNemar's exact two-sided p-value: how likely a split at least this uneven is if both models are equally good."""
    from scipy.stats import binomtest

    return float(binomtest(won, won + lost, 0.5).pvalue) if won + lost else 1.0


def paired_p_value(
    differences: Sequence[float] | np.ndarray, seed: int = 0, clusters: Sequence[Hashable] | None = None
) -> float:
    """Two-sided p-value for "the mean difference is 0", one difference per question; those of a cluster are added up.

    Signs are flipped at random (`scipy.stats.permutation_test`, exact for few questions); above `SIGN_FLIP_UP_TO`
    questions a t-test. Differences that are rounding noise count as 0.
    """
    from scipy.stats import permutation_test, ttest_1samp

    data = np.asarray(differences, dtype=np.float64)
    if clusters is not None:
        data = _sums(data, clusters)[0]
    data = np.where(np.abs(data) <= NOISE, 0.0, data)
    if data.size < 2 or not data.any():
        return 1.0
    if np.ptp(data) <= _noise(data):
        return 2.0 ** (1 - data.size)
    if data.size > SIGN_FLIP_UP_TO:
        return float(ttest_1samp(data, 0.0).pvalue)
    return float(
        permutation_test(
            (data,),
            np.mean,
            permutation_type="samples",
            n_resamples=RESAMPLES,
            vectorized=True,
            rng=np.random.default_rng(seed),
        ).pvalue
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm 1979: the p-values of several tests, adjusted for their number (scipy has only Benjamini and Hochberg)."""
    adjusted, running = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(np.argsort(p_values)):
        running = max(running, (len(p_values) - rank) * p_values[index])
        adjusted[index] = min(1.0, running)
    return adjusted


def mean_over_seeds(values: Sequence[float]) -> Interval:
    """Mean over training seeds with Student's t interval; no interval for a single seed, or for equal values."""
    from scipy.stats import ttest_1samp

    data = np.asarray(values, dtype=np.float64)
    if data.size < 2:
        return Interval(float(data.mean()), None, None, "none: one seed")
    if np.ptp(data) <= _noise(data):
        return Interval(float(data.mean()), None, None, "none: every seed has the same value")
    interval = ttest_1samp(data, 0.0).confidence_interval(CONFIDENCE)
    return Interval(float(data.mean()), float(interval.low), float(interval.high), "Student's t over seeds")


def pass_at_k(n: int, correct: int, k: int) -> float:
    """Probability that k of n responses, drawn without replacement, hold at least one of the `correct` ones.

    Source: Chen et al. 2021, arXiv:2107.03374, equation 1: 1 - C(n - c, k) / C(n, k), here in exact integers. It is
    an unbiased estimate of 1 - (1 - p)^k; 1 - (1 - c/n)^k is biased.
    """
    if not (1 <= k <= n and 0 <= correct <= n):
        raise ValueError(f"need 1 <= k <= n and 0 <= correct <= n, not k={k}, n={n}, correct={correct}")
    return 1.0 - math.comb(n - correct, k) / math.comb(n, k)


def ks_for(n: int) -> list[int]:
    """The k for which pass@k is reported in groups of n: powers of two, and n itself."""
    return sorted({2**power for power in range(n.bit_length()) if 2**power <= n} | {n})


def _noise(data: np.ndarray) -> float:
    return NOISE * max(1.0, float(np.abs(data).max()))


def _constant(value: float, n: int, bounds: tuple[float, float] | None, unit: str) -> Interval:
    """n equal values: with 95% confidence, a share below 1 - 0.025^(1/n) of the population differs from them."""
    if bounds is None:
        return Interval(value, None, None, f"none: every {unit} has the same value")
    share = 1.0 - ((1.0 - CONFIDENCE) / 2.0) ** (1.0 / n)
    low, high = (value + share * (bound - value) for bound in bounds)
    return Interval(value, low, high, f"exact bound: every {unit} has the same value")


def _sums(data: np.ndarray, clusters: Sequence[Hashable]) -> tuple[np.ndarray, np.ndarray]:
    """Sum and number of the values of each cluster."""
    places: dict[Hashable, int] = {}
    of_each = [places.setdefault(cluster, len(places)) for cluster in clusters]
    return np.bincount(of_each, weights=data), np.bincount(of_each)


def _bootstrap(data: np.ndarray, unit: str, seed: int) -> Interval:
    from scipy.stats import bootstrap

    result = None
    for method in ("BCa", "percentile") if data.size <= BCA_UP_TO else ("percentile",):
        result = bootstrap(
            (data,),
            np.mean,
            n_resamples=RESAMPLES if result is None else 0,
            batch=max(1, BATCH_NUMBERS // data.size),
            confidence_level=CONFIDENCE,
            method=method,
            bootstrap_result=result,
            rng=np.random.default_rng(seed),
        )
        low, high = (float(end) for end in result.confidence_interval)
        # BCa has no answer where no resample lies on one side of the mean.
        if math.isfinite(low) and math.isfinite(high):
            return Interval(float(data.mean()), low, high, f"bootstrap over {unit}s ({method})")
    return Interval(float(data.mean()), None, None, "none: the bootstrap gave no finite interval")
