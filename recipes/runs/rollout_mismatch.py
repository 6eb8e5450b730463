"""Detect by log-prob mismatch that vLLM and the trainer process images differently.

If vLLM does not see the images, the model still answers and training continues: every metric is there and the exit code
is 0. But vLLM returns the log-prob of each token that it samples, and the trainer computes it again: `KL`, in nats a
token, is the mean of log p(vLLM) - log p(trainer) over the sampled tokens. It is zero up to rounding where both saw the
same image with the same weights, and far above `MOST` where vLLM saw none; docs/NUMBER_GAME.md has the figures.
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
"""The largest mismatch, in nats a token, that counts as rounding."""
VARIABLE = "MAX_ROLLOUT_KL"
ADVICE = (
    "look at actor_rollout_ref.rollout.load_format (images need safetensors) and at what the verl section "
    f"changes; {VARIABLE} takes another bound"
)


def bound(recipe: Recipe, environ: Mapping[str, str]) -> float:
    """Return the largest `KL` that a step may have; infinite for a run without images or without this metric.

    Raises:
        RecipeError: `MAX_ROLLOUT_KL` is no positive number.
    """
    rollout = recipe.worker.rollout
    if not rollout.limit_images or not (rollout.calculate_log_probs or recipe.engine == "easyr1"):
        return math.inf
    return positive_number(environ, VARIABLE, "for example 0.05, or inf") or MOST


def disagreement(step: Step, most: float) -> str | None:
    """Return in one line what is wrong with a step; None if nothing is wrong or the step has no `KL`."""
    value = step.get(KL)
    # Only noise makes the mean negative, so its absolute value counts; NaN compares as false and is reported.
    if value is None or math.isinf(most) or abs(value) <= most:
        return None
    what = f"{KL} is {value:.3g} nats a token, at most {most:g} is rounding"
    return f"step {step.step}: vLLM and the trainer do not see the same image ({what})"


def refuse_checkpoint_after_mismatch(recipe: Recipe, history: Sequence[Step]) -> None:
    """Raise where a run would resume a checkpoint after a mismatch; `history` has the steps up to the checkpoint."""
    most = bound(recipe, os.environ)
    if mismatch := next((text for step in history if (text := disagreement(step, most))), None):
        raise RecipeError(
            f"the checkpoint to go on from was trained on a wrong image: {mismatch}",
            where=str(recipe.trainer.save_checkpoint_path),
            fix=f"remove that folder, or choose another EXPERIMENT_NAME; {ADVICE}",
        )
