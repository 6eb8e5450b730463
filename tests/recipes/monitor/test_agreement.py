"""When vLLM and the trainer are said to see different images, and when not."""

from __future__ import annotations

import math

import pytest

from recipes.config import load
from recipes.errors import RecipeError
from recipes.monitor.agreement import (
    DIFFERENCE,
    KL,
    Bounds,
    bounds,
    disagreement,
    refuse_checkpoint_after_mismatch,
    rule,
)
from recipes.monitor.metrics import Step

EXACT = Bounds(kl=0.01, difference=0.1)
ROUNDED = Bounds(kl=0.02)


def step(kl, difference=1e-5, number=1):
    return Step(number, {KL: kl, DIFFERENCE: difference, "critic/score/mean": 0.5})


@pytest.mark.parametrize(
    ("found", "limits"),
    [
        (step(2e-7), EXACT),
        (step(-0.3), EXACT),  # an estimate of something that is never negative: noise, and the difference decides
        (step(3e-3, 0.03), EXACT),  # random weights, from which vLLM may not sample image placeholders
        (step(5e-4, 0.6), ROUNDED),  # bf16: single tokens of a good run differ
        (Step(0, {"val-core/number_game/acc/mean@1": 0.4}), EXACT),
        (Step(1, {KL: None}), EXACT),
    ],
)
def test_rounding_is_no_fault(found, limits):
    assert disagreement(found, limits) is None


@pytest.mark.parametrize(
    ("found", "limits", "words"),
    [
        (
            step(1.3, 0.97),
            EXACT,
            "rollout_corr/kl is 1.3 nats a token, at most 0.01 is rounding; training/rollout_probs",
        ),
        (step(0.04), EXACT, "rollout_corr/kl is 0.04 nats"),
        (step(0.04), ROUNDED, "at most 0.02"),
        (step(1e-4, 0.97), EXACT, "training/rollout_probs_diff_max is 0.97, at most 0.1"),
        (step(math.nan), EXACT, "rollout_corr/kl is nan"),
        (step(math.inf), ROUNDED, "rollout_corr/kl is inf"),
        (
            Step(1, {f"actor/{KL}": 1.3}),
            ROUNDED,
            "rollout_corr/kl is 1.3",
        ),  # computed by the update, without an old pass
    ],
)
def test_what_is_more_than_rounding_is_told(found, limits, words):
    told = disagreement(found, limits)
    assert told.startswith("step 1: vLLM and the trainer do not see the same image (")
    assert words in told


def recipe(*arguments, hardware="cpu"):
    return load("number_game", arguments=arguments, environ={"EMBEDDED": "0"}, hardware=hardware)


def test_the_bounds_follow_the_precision_of_the_rollout():
    assert bounds(recipe(), {}) == EXACT
    assert bounds(recipe(hardware="gpu"), {}) == ROUNDED
    assert bounds(recipe(), {"MAX_ROLLOUT_KL": "0.5"}) == Bounds(0.5)
    assert disagreement(step(9.0, 1.0), bounds(recipe(), {"MAX_ROLLOUT_KL": "inf"})) is None


def test_runs_that_cannot_be_judged_are_not():
    assert bounds(recipe("worker.rollout.calculate_log_probs=false"), {}) is None
    assert bounds(load("countdown", environ={}, hardware="cpu"), {}) is None
    assert rule(None)(step(9.0)) is None


@pytest.mark.parametrize("text", ["none", "0", "-1", "nan"])
def test_a_bound_that_is_none(text):
    with pytest.raises(RecipeError, match=f"MAX_ROLLOUT_KL={text} is not a positive number"):
        bounds(recipe(), {"MAX_ROLLOUT_KL": text})


def test_a_checkpoint_of_a_blind_step_is_not_gone_on_from():
    history = [step(1e-7, number=1), step(1.3, number=2), step(1e-7, number=3)]
    with pytest.raises(RecipeError, match="step 2"):
        refuse_checkpoint_after_mismatch(history, 3, EXACT, "checkpoints")
    refuse_checkpoint_after_mismatch(history, 1, EXACT, "checkpoints")
    refuse_checkpoint_after_mismatch(history, 3, None, "checkpoints")
