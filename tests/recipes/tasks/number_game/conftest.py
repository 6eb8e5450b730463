"""The reward and three rounds."""

from __future__ import annotations

import pytest

from recipes.data.rewards import load_reward
from recipes.tasks.number_game.rules import parse_deal


@pytest.fixture
def score():
    """The reward."""
    return load_reward("reward_functions/number_game.py").compute_score


@pytest.fixture
def deals():
    """Three rounds whose answers are 1, 2 and 0."""
    return [parse_deal(code) for code in ("g374", "r952", "y581")]
