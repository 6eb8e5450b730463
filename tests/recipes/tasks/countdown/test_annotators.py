"""The annotators: right arithmetic, honest about what is right, only multisets of the pretraining bucket."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import numpy as np
import pytest

from recipes.data.rewards import load_reward
from recipes.tasks.countdown.data import DATA_SOURCE, PRESETS, bucket, ground_truth
from recipes.tasks.countdown.pretraining import LARGEST, SPEC, Annotators, expressions, problems, trials
from recipes.tasks.countdown.solver import solve

TINY = PRESETS["tiny"]
PROBLEM = re.compile(r"Make (\d+) from the numbers (\d+), (\d+), (\d+)\.")
REWARD = load_reward("reward_functions/countdown.py")


def score(response, numbers, target):
    return REWARD.compute_score(DATA_SOURCE, response, ground_truth(numbers, target))


def test_expressions_reach_exactly_what_the_solver_reaches():
    rng, targets = random.Random(0), np.arange(1, LARGEST + 1)
    for index in range(200):
        numbers = tuple(rng.randint(1, 30) for _ in range(3))
        found = expressions(numbers)
        solvable = targets[solve(np.array([numbers] * LARGEST), targets).counts > 0]
        assert set(found.values()) == set(solvable.tolist()), numbers
        if index < 30:
            assert all(score(f"<answer>{text}</answer>", numbers, of)["accuracy"] == 1 for text, of in found.items())
    every = problems(TINY)
    assert len(every) > 10_000
    assert {bucket(numbers) for numbers, _ in every} == {"pretrain"}
    assert all(TINY.min_target <= target <= TINY.max_target for _, target in every)


def test_demonstrations_state_truly_whether_they_are_right():
    drawn = list(SPEC.examples(SPEC.plan, 3, 2000))
    for example in drawn:
        target, *numbers = map(int, PROBLEM.match(example.prompt).groups())
        result = score(example.response, numbers, target)
        assert (result["accuracy"], result["format"], bucket(numbers)) == (float(example.right), 1.0, "pretrain")
        lines = example.response.split("</think>")[0].removeprefix("<think>").splitlines()
        assert len(set(lines)) == len(lines) <= Annotators.trials
        assert [line.endswith(f" = {target}") for line in lines] == [False] * (len(lines) - 1) + [example.right]
    # 0.7 * 0.2 + 0.3 * (1 - 0.8 * 0.5^3): the hasty, and the patient within four trials.
    assert sum(example.right for example in drawn) / len(drawn) == pytest.approx(0.41, abs=0.04)
    assert drawn[:20] == list(SPEC.examples(SPEC.plan, 3, 20)) != list(SPEC.examples(SPEC.plan, 6, 20))


def test_hasty_and_patient_annotators_and_near_misses():
    found, rng = expressions((3, 8, 11)), random.Random(0)
    assert {len(trials(found, 25, Annotators(hasty=1.0), rng)) for _ in range(200)} == {1}
    patient = Annotators(hasty=0.0, trials=100)
    assert all(found[trials(found, 25, patient, rng)[-1]] == 25 for _ in range(200))
    wrong = replace(Annotators(), hasty=1.0, known=0.0, misses=2)
    near = {"a": 10, "b": 12, "c": 9, "d": 30}
    assert {trials(near, 10, wrong, rng)[0] for _ in range(100)} == {"b", "c"}
