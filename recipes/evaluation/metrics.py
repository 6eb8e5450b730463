"""What one group of responses says: pass@k, variance, entropies. Formulas and caveats: docs/EVALUATION_DESIGN.md."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from recipes.evaluation.records import Response
from recipes.evaluation.scoring import Score


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
