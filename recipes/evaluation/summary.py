"""From one `QuestionStats` per question to the figures of a whole pass, in memory that holds numbers but no text."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from recipes.evaluation.intervals import mean_with_interval
from recipes.evaluation.metrics import NO_VARIANCE, QuestionStats, ks_for
from recipes.evaluation.records import Response
from recipes.evaluation.scoring import Score

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
