"""The expressions that annotators know, against the solver and the reward."""

from __future__ import annotations

import random
import re

from recipes.data.rewards import load_reward
from recipes.tasks.countdown.problems import PRESETS, bucket, solve
from recipes.tasks.countdown.rows import DATA_SOURCE, ground_truth
from tools.tiny_models.countdown import LARGEST, expressions, problems

TINY = PRESETS["tiny"]
PROBLEM = re.compile(r"Make (\d+) from the numbers (\d+), (\d+), (\d+)\.")
REWARD = load_reward("reward_functions/countdown.py")


def score(response, numbers, target):
    return REWARD.compute_score(DATA_SOURCE, response, ground_truth(numbers, target))


def test_expressions_reach_exactly_what_the_solver_reaches():
    rng = random.Random(0)
    for index in range(200):
        numbers = tuple(rng.randint(1, 30) for _ in range(3))
        found = expressions(numbers)
        assert set(found.values()) == {target for target in range(1, LARGEST + 1) if solve(numbers, target)}, numbers
        if index < 30:
            assert all(score(f"<answer>{text}</answer>", numbers, of)["accuracy"] == 1 for text, of in found.items())
    every = problems(TINY)
    assert len(every) > 10_000
    assert {bucket(numbers) for numbers, _ in every} == {"pretrain"}
    assert all(TINY.min_target <= target <= TINY.max_target for _, target in every)
