"""Detects vLLM and trainer processing images differently, by log-prob mismatch.

A model that is served blind goes on answering, and training goes on with it: every metric is there and the exit code is
0. Only one thing shows it. vLLM states the probability of each token that it samples, the trainer computes the same
probability from the same prompt, and verl compares both at every step:

- `rollout_corr/kl`, in nats a token: the mean of log p(vLLM) - log p(trainer) over the tokens that vLLM sampled;
  `actor/rollout_corr/kl` where the update computes it, since no pass for old log-probabilities does;
- `training/rollout_probs_diff_max`: the largest difference between the two probabilities of one token.

Both are zero up to rounding where both saw the same image with the same weights. The bounds lie between what rounding
gives and what a blind rollout gives; docs/NUMBER_GAME.md has the figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from recipes.config import Recipe
from recipes.errors import RecipeError
from recipes.monitor.metrics import Step

KL = "rollout_corr/kl"
DIFFERENCE = "training/rollout_probs_diff_max"
VARIABLE = "MAX_ROLLOUT_KL"
OWN_BOUND = {"fp32": 0.01}
OTHER_BOUND = 0.02
"""In 16 bits, where both engines round differently."""
LARGEST_DIFFERENCE = 0.1
"""In float32 only: in 16 bits single tokens of a good run differ by more."""

Rule = Callable[[Step], str | None]


@dataclass(frozen=True)
class Bounds:
    """The most that is put down to rounding; `difference` is infinite where it says nothing."""

    kl: float
    difference: float = math.inf


def bounds(recipe: Recipe, environ: Mapping[str, str]) -> Bounds | None:
    """What holds for this run; None where there are no images, or no such metrics.

    Raises:
        RecipeError: `MAX_ROLLOUT_KL` is no positive number.
    """
    rollout = recipe.worker.rollout
    if recipe.engine != "verl" or not rollout.limit_images or not rollout.calculate_log_probs:
        return None
    text = environ.get(VARIABLE, "").strip()
    if text:
        return Bounds(_positive(text))
    exact = rollout.dtype == "fp32"
    return Bounds(OWN_BOUND.get(rollout.dtype, OTHER_BOUND), LARGEST_DIFFERENCE if exact else math.inf)


def disagreement(step: Step, limits: Bounds) -> str | None:
    """What is wrong with a step, in one line; None where nothing is, or where it was a validation only."""
    kl, difference = (step.get(name, f"actor/{name}") for name in (KL, DIFFERENCE))
    measured = [(KL, kl, limits.kl, " nats a token"), (DIFFERENCE, difference, limits.difference, "")]
    # A comparison with what is not a number is false, so this asks whether a value lies within its bound.
    over = [
        f"{name} is {value:.3g}{unit}, at most {most:g} is rounding"
        for name, value, most, unit in measured
        if value is not None and most < math.inf and not value <= most
    ]
    if not over:
        return None
    return f"step {step.step}: vLLM and the trainer do not see the same image ({'; '.join(over)})"


def rule(limits: Bounds | None) -> Rule:
    """`disagreement` for the supervisor."""
    return lambda step: disagreement(step, limits) if limits else None


def refuse_checkpoint_after_mismatch(history: list[Step], upto: int, limits: Bounds | None, folder: str) -> None:
    """Raise where a run would go on from a checkpoint that such a step has made.

    Args:
        history: the experiment's steps.
        upto: the step of the checkpoint.
        folder: where the checkpoints are.
    """
    mismatch = next((text for step in history if step.step <= upto and (text := rule(limits)(step))), None)
    if mismatch:
        raise RecipeError(
            f"the checkpoint to go on from was trained on a wrong image: {mismatch}",
            where=folder,
            fix=f"remove that folder, or choose another EXPERIMENT_NAME; {ADVICE}",
        )


ADVICE = (
    "look at worker.rollout.load_format (auto takes the weights that the images need) and at what the verl section "
    f"changes; {VARIABLE} takes another bound"
)


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not value > 0:
        raise RecipeError(
            f"{VARIABLE}={text} is not a positive number", where=f"variable {VARIABLE}", fix="for example 0.05, or inf"
        )
    return value
