"""Detects vLLM and trainer processing images differently, by log-prob mismatch.

A model that is served blind goes on answering, and training goes on with it: every metric is there and the exit code is
0. But vLLM states the probability of each token that it samples, the trainer computes the same one, and verl compares:

- `rollout_corr/kl`, in nats a token: the mean of log p(vLLM) - log p(trainer) over the tokens that vLLM sampled;
- `training/rollout_probs_diff_max`: the largest difference between the two probabilities of one token, where a pass for
  old log-probabilities computes them; without it only the update measures the first (metrics.py gives it that name).

Both are zero up to rounding where both saw the same image with the same weights. The bounds lie between what rounding
gives and what a blind rollout gives; docs/NUMBER_GAME.md has the figures.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping

from recipes.config import Recipe
from recipes.config.variables import positive_number
from recipes.errors import RecipeError
from recipes.runs.metrics import Step

KL = "rollout_corr/kl"
DIFFERENCE = "training/rollout_probs_diff_max"
UNITS = {KL: " nats a token", DIFFERENCE: ""}
VARIABLE = "MAX_ROLLOUT_KL"
EXACT = {KL: 0.01, DIFFERENCE: 0.1}
ROUNDED = {KL: 0.02}
"""In 16 bits, where both engines round differently, and single tokens of a good run differ by more than any bound."""

Bounds = Mapping[str, float]
"""Metric -> the most that is put down to rounding."""


def bounds(recipe: Recipe, environ: Mapping[str, str]) -> Bounds:
    """Return what holds for this run; empty where there are no images, or no such metrics.

    Raises:
        RecipeError: `MAX_ROLLOUT_KL` is no positive number.
    """
    rollout = recipe.worker.rollout
    if not rollout.limit_images or not (rollout.calculate_log_probs or recipe.engine == "easyr1"):
        return {}
    if own := positive_number(environ, VARIABLE, "for example 0.05, or inf"):
        return {KL: own}
    return EXACT if rollout.dtype == "fp32" else ROUNDED


def disagreement(step: Step, limits: Bounds) -> str | None:
    """Return what is wrong with a step, in one line; None where nothing is, or where it was a validation only."""
    values = {name: step.get(name, f"actor/{name}") for name in limits}
    # A comparison with what is not a number is false, so this asks whether a value lies within its bound.
    over = [
        f"{name} is {value:.3g}{UNITS[name]}, at most {most:g} is rounding"
        for name, most in limits.items()
        if (value := values[name]) is not None and most < math.inf and not value <= most
    ]
    if not over:
        return None
    return f"step {step.step}: vLLM and the trainer do not see the same image ({'; '.join(over)})"


def refuse_checkpoint_after_mismatch(recipe: Recipe, history: list[Step]) -> None:
    """Raise where a run would go on from a checkpoint that such a step has made; `history` has the steps up to it."""
    limits = bounds(recipe, os.environ)
    mismatch = next((text for step in history if (text := disagreement(step, limits))), None)
    if mismatch:
        raise RecipeError(
            f"the checkpoint to go on from was trained on a wrong image: {mismatch}",
            where=str(recipe.trainer.save_checkpoint_path),
            fix=f"remove that folder, or choose another EXPERIMENT_NAME; {ADVICE}",
        )


ADVICE = (
    "look at actor_rollout_ref.rollout.load_format (images need safetensors) and at what the verl section "
    f"changes; {VARIABLE} takes another bound"
)
