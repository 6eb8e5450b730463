"""Rewards of logged candidates, for a whole data set at once."""

from __future__ import annotations

import numpy as np

from recipes.errors import RecipeError
from recipes.pointer_selector.advantages import SAME
from recipes.pointer_selector.config import RewardConfig
from recipes.pointer_selector.data import PointerData

NEEDS = {
    "combined": ("vqa_correct",),
    "hard_soft": ("vqa_correct", "vqa_acc_score"),
    "separated": ("vqa_correct", "vqa_acc_score"),
    "correctness": ("vqa_correct",),
    "probability": ("vqa_gt_prob",),
    "quality": (),
}
"""The numbers that each mode reads, besides the quality score that `combined` and `quality` read."""


def rewards(data: PointerData, config: RewardConfig) -> np.ndarray:
    """One reward a candidate, [M] in float32.

    Modes, with alpha = `config.alpha`, beta = `config.beta`, c = vqa_correct, a = vqa_acc_score, p = vqa_gt_prob, and
    q = `config.quality` rescaled to 0 to 1 within the group, so that its scale is that of c:
        combined     alpha q + beta c
        hard_soft    alpha a + beta c
        separated    alpha a + beta (2 if c else 0): right answers stay above wrong ones for any a, if alpha < 2 beta
        correctness  beta c
        probability  alpha p
        quality      alpha q

    Raises:
        RecipeError: a candidate lacks a number that the mode needs; names the query.
    """
    read = {name: _required(data, name, config.mode) for name in NEEDS[config.mode]}
    if config.mode in ("combined", "quality"):
        quality = config.alpha * rescaled(_required(data, config.quality, config.mode), data.group_starts)
        total = quality + (config.beta * read["vqa_correct"] if config.mode == "combined" else 0.0)
    elif config.mode == "hard_soft":
        total = config.alpha * read["vqa_acc_score"] + config.beta * read["vqa_correct"]
    elif config.mode == "separated":
        total = config.alpha * read["vqa_acc_score"] + 2.0 * config.beta * read["vqa_correct"]
    elif config.mode == "correctness":
        total = config.beta * read["vqa_correct"]
    else:
        total = config.alpha * read["vqa_gt_prob"]
    return total.astype(np.float32)


def rescaled(values: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Each group stretched to 0 to 1, equal values becoming 0.5: values [M], starts [G + 1] -> [M]."""
    sizes = np.diff(starts)
    low = np.repeat(np.minimum.reduceat(values, starts[:-1]), sizes)
    span = np.repeat(np.maximum.reduceat(values, starts[:-1]), sizes) - low
    return np.where(span > 0, (values - low) / np.where(span > 0, span, 1), 0.5)


def equal_groups(values: np.ndarray, data: PointerData) -> np.ndarray:
    """The groups [n] whose rewards are all equal, those of a single candidate among them: advantages are 0 there."""
    starts = data.group_starts[:-1]
    return np.flatnonzero(~(np.maximum.reduceat(values, starts) - np.minimum.reduceat(values, starts) > SAME))


def require_differences(values: np.ndarray, data: PointerData, mode: str) -> None:
    """Refuse data from which GRPO could learn nothing.

    Raises:
        RecipeError: the rewards are equal in every group; names the first query.
    """
    if len(equal_groups(values, data)) == len(data.group_starts) - 1:
        raise RecipeError(
            f"in each of the {len(data.group_starts) - 1} groups all rewards are equal, in query "
            f"{data.query_ids[data.group_query[0]]!r} for instance, so GRPO has nothing to compare",
            where=f"reward.mode={mode}",
            fix="log several candidates a query, choose another REWARD_MODE, or set GRPO_EPOCHS=0",
        )


def _required(data: PointerData, name: str, mode: str) -> np.ndarray:
    values = data.scores[name].astype(np.float64)
    missing = np.flatnonzero(np.isnan(values))
    if len(missing):
        query = data.query_ids[data.candidate_query[missing[0]]]
        raise RecipeError(
            f"{len(missing)} candidates have no {name}, the first of them in query {query!r}",
            where=f"reward.mode={mode}",
            fix="choose a reward that the data can give, or log that number",
        )
    return values
