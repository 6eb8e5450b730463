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
    ("seen", "limits", "message"),
    [
        (step(2e-7), EXACT, None),
        (step(-0.3), EXACT, None),  # an estimate of something that is never negative: noise, the difference decides
        (step(3e-3, 0.03), EXACT, None),  # random weights, from which vLLM may not sample image placeholders
        (step(5e-4, 0.6), ROUNDED, None),  # bf16: single tokens of a good run differ
        (Step(1, {KL: None}), EXACT, None),
        (step(1.3, 0.97), EXACT, "rollout_corr/kl is 1.3 nats a token, at most 0.01 is rounding; training/rollout_pr"),
        (step(0.04), ROUNDED, "at most 0.02"),
        (step(1e-4, 0.97), EXACT, "training/rollout_probs_diff_max is 0.97, at most 0.1"),
        (step(math.nan), EXACT, "rollout_corr/kl is nan"),
        (Step(1, {f"actor/{KL}": 1.3}), ROUNDED, "rollout_corr/kl is 1.3"),  # by the update, without an old pass
    ],
)
def test_more_than_rounding_is_a_mismatch(seen, limits, message):
    said = disagreement(seen, limits)
    if message is None:
        assert said is None
    else:
        assert said.startswith("step 1: vLLM and the trainer do not see the same image (")
        assert message in said


def test_the_bounds_follow_the_precision_of_the_rollout_and_a_variable():
    recipe = load("number_game", environ={"EMBEDDED": "0"}, hardware="gpu")
    assert bounds(recipe, {}) == ROUNDED
    assert bounds(recipe, {"MAX_ROLLOUT_KL": "0.5"}) == {KL: 0.5}
