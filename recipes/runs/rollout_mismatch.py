"""Detects vLLM and trainer processing images differently, by log-prob mismatch.

A model that is served blind goes on answering, and training goes on with it: every metric is there and the exit code is
0. But vLLM states the probability of each token that it samples, and the trainer computes the same one: `KL`, in nats a
token, is the mean of log p(vLLM) - log p(trainer) over the sampled tokens. It is zero up to rounding where both saw the
same image with the same weights, and far beyond `MOST` where vLLM saw none; docs/NUMBER_GAME.md has the figures.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence

from recipes.config import Recipe
from recipes.config.variables import positive_number
from recipes.errors import RecipeError
from recipes.runs.metrics import Step

KL = "rollout_corr/kl"
MOST = 0.02
"""Nats a token that are put down to rounding."""
VARIABLE = "MAX_ROLLOUT_KL"
ADVICE = (
    "look at actor_rollout_ref.rollout.load_format (images need safetensors) and at what the verl section "
    f"changes; {VARIABLE} takes another bound"
)


def bound(recipe: Recipe, environ: Mapping[str, str]) -> float:
    """Return the most that a step of this run may have; infinite where there are no images, or no such metric.

    Raises:
        RecipeError: `MAX_ROLLOUT_KL` is no positive number.
    """
    rollout = recipe.worker.rollout
    if not rollout.limit_images or not (rollout.calculate_log_probs or recipe.engine == "easyr1"):
        return math.inf
    return positive_number(environ, VARIABLE, "for example 0.05, or inf") or MOST


def disagreement(step: Step, most: float) -> str | None:
    """Return what is wrong with a step, in one line; None where nothing is, or where it was a validation only."""
    value = step.get(KL)
    # The mean is not negative but for noise, so the size alone counts; a comparison with what is no number is false.
    if value is None or math.isinf(most) or abs(value) <= most:
        return None
    what = f"{KL} is {value:.3g} nats a token, at most {most:g} is rounding"
    return f"step {step.step}: vLLM and the trainer do not see the same image ({what})"


def refuse_checkpoint_after_mismatch(recipe: Recipe, history: Sequence[Step]) -> None:
    """Raise where a run would go on from a checkpoint that such a step has made; `history` has the steps up to it."""
    most = bound(recipe, os.environ)
    if mismatch := next((text for step in history if (text := disagreement(step, most))), None):
        raise RecipeError(
            f"the checkpoint to go on from was trained on a wrong image: {mismatch}",
            where=str(recipe.trainer.save_checkpoint_path),
            fix=f"remove that folder, or choose another EXPERIMENT_NAME; {ADVICE}",
        )
