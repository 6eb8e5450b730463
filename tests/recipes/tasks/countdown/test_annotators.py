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


def judge(response: str, numbers: list[int], target: int) -> dict:
    return REWARD.compute_score(DATA_SOURCE, response, ground_truth(numbers, target))


def test_expressions_reach_exactly_what_the_solver_can_reach():
    rng = random.Random(0)
    targets = np.arange(1, LARGEST + 1)
    for _ in range(200):
        numbers = tuple(rng.randint(1, 30) for _ in range(3))
        solvable = targets[solve(np.array([numbers] * LARGEST), targets).counts > 0]
        assert set(expressions(numbers).values()) == set(solvable.tolist()), numbers


def test_expressions_have_the_values_they_say():
    rng = random.Random(1)
    for _ in range(40):
        numbers = [rng.randint(1, 30) for _ in range(3)]
        for text, value in expressions(tuple(numbers)).items():
            assert judge(f"<answer>{text}</answer>", numbers, value)["accuracy"] == 1.0, (text, value)


def test_problems_are_all_of_the_pretraining_bucket_and_in_range():
    every = problems(TINY)
    assert len(every) > 10_000
    assert {bucket(numbers) for numbers, _ in every} == {"pretrain"}
    assert all(TINY.min_target <= target <= TINY.max_target for _, target in every)


def test_demonstrations_say_truly_whether_they_are_right():
    drawn = list(SPEC.examples(SPEC.plan, 3, 2000))
    for example in drawn:
        target, *numbers = map(int, PROBLEM.match(example.prompt).groups())
        result = judge(example.response, numbers, target)
        assert result["accuracy"] == float(example.right)
        assert result["format"] == 1.0
        assert bucket(numbers) == "pretrain"
        lines = example.response.split("</think>")[0].removeprefix("<think>").splitlines()
        assert len(set(lines)) == len(lines) <= Annotators.trials
        assert [line.endswith(f" = {target}") for line in lines] == [False] * (len(lines) - 1) + [example.right]
    # 0.7 * 0.2 + 0.3 * (1 - 0.8 * 0.5^3): the hasty, and the patient within four trials.
    assert sum(example.right for example in drawn) / len(drawn) == pytest.approx(0.41, abs=0.04)


def test_the_same_seed_gives_the_same_demonstrations():
    first, again, other = (list(SPEC.examples(SPEC.plan, seed, 20)) for seed in (5, 5, 6))
    assert first == again != other


def test_hasty_and_patient_annotators():
    found, rng = expressions((3, 8, 11)), random.Random(0)
    hasty = [trials(found, 25, replace(Annotators(), hasty=1.0), rng) for _ in range(200)]
    assert {len(written) for written in hasty} == {1}
    patient = replace(Annotators(), hasty=0.0, trials=100)
    assert all(found[trials(found, 25, patient, rng)[-1]] == 25 for _ in range(200))


def test_near_misses_are_the_nearest():
    found, rng = {"a": 10, "b": 12, "c": 9, "d": 30}, random.Random(0)
    wrong = replace(Annotators(), hasty=1.0, known=0.0, misses=2)
    assert {trials(found, 10, wrong, rng)[0] for _ in range(100)} == {"b", "c"}
