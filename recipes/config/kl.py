"""KL: where it acts, and averages of the loss."""

from __future__ import annotations

from recipes.config.schema import Recipe

AVERAGES = {"token": "token-mean", "seq": "seq-mean-token-mean"}
"""loss_avg_mode -> the loss_agg_mode that it stands for."""
CONSTANT_LENGTH = "seq-mean-token-sum-norm"
"""The loss_agg_mode that divides by a constant length instead of each response's."""


def kl_places(recipe: Recipe) -> tuple[bool, bool]:
    """Where KL acts: (in the reward, in the loss)."""
    algorithm = recipe.algorithm
    if algorithm.disable_kl:
        return False, False
    chosen = algorithm.use_kl_in_reward
    return (not algorithm.use_kl_loss if chosen is None else chosen), algorithm.use_kl_loss
