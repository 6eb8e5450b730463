"""Base against trained on the same questions: paired differences, McNemar, and what was won and lost."""

from __future__ import annotations

from typing import Any

from recipes.evaluation.intervals import mcnemar, mean_with_interval
from recipes.evaluation.metrics import ks_for
from recipes.evaluation.summary import COLUMNS, GROUP_COLUMNS, Collector

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
