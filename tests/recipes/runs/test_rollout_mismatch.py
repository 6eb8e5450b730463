"""When vLLM and the trainer are said to see different images, and when not."""

from __future__ import annotations

import math

import pytest

from recipes.config import load
from recipes.runs.metrics import Step
from recipes.runs.rollout_mismatch import (
    DIFFERENCE,
    EXACT,
    KL,
    ROUNDED,
    bounds,
    disagreement,
)


def step(kl, difference=1e-5, number=1):
    return Step(number, {KL: kl, DIFFERENCE: difference, "critic/score/mean": 0.5})


@pytest.mark.parametrize(
    ("seen", "limits", "named"),
    [
        (step(-0.3), EXACT, []),  # an estimate of something that is never negative: noise, the difference decides
        (step(3e-3, 0.03), EXACT, []),  # random weights, from which vLLM may not sample image placeholders
        (step(5e-4, 0.6), ROUNDED, []),  # bf16: single tokens of a good run differ
        (Step(1, {KL: None}), EXACT, []),
        (step(1.3, 0.97), EXACT, [KL, DIFFERENCE]),
        (step(0.04), ROUNDED, [KL]),
        (step(1e-4, 0.97), EXACT, [DIFFERENCE]),
        (step(math.nan), EXACT, [KL]),
        (Step(1, {f"actor/{KL}": 1.3}), ROUNDED, [KL]),  # by the update, without an old pass
    ],
)
def test_more_than_rounding_is_a_mismatch(seen, limits, named):
    said = disagreement(seen, limits) or ""
    assert [name for name in (KL, DIFFERENCE) if name in said] == named


def test_the_bounds_follow_the_precision_of_the_rollout_and_a_variable():
    recipe = load("number_game", environ={"EMBEDDED": "0"}, hardware="gpu")
    assert bounds(recipe, {}) == ROUNDED
    assert bounds(recipe, {"MAX_ROLLOUT_KL": "0.5"}) == {KL: 0.5}
