"""The annotators of word problems: right arithmetic, honest about what is right, only pretraining's calculations."""

from __future__ import annotations

import random
import re
from collections import Counter
from dataclasses import replace
from itertools import islice

import pytest

from recipes.data.rewards import load_reward
from recipes.data.splits import bucket_of
from recipes.tasks.gsm8k.pretraining import (
    LARGEST,
    SPEC,
    Annotators,
    careful_response,
    careless_response,
    possible,
)
from recipes.tasks.gsm8k.problems import TINY, calculation_key, word_problems
from recipes.tasks.gsm8k.rows import DATA_SOURCE

STEP = re.compile(r"(\d+) ([-+*/]) (\d+) = (\d+)")


def drawn(count, bucket="pretrain", seed=0):
    return list(islice(word_problems(TINY, (bucket,), seed=seed), count))


@pytest.fixture(scope="module")
def judge():
    score = load_reward("reward_functions/gsm8k.py").compute_score
    return lambda response, gold: score(DATA_SOURCE, response, str(gold))


def test_demonstrations_say_truly_whether_they_are_right(judge):
    golds = [problem.gold for problem in drawn(1000, seed=3)]
    found = list(SPEC.examples(SPEC.plan, 3, 1000))
    for example, gold in zip(found, golds, strict=True):
        result = judge(example.response, gold)
        assert (result["accuracy"], result["format"]) == (float(example.right), 1.0), example
        for p, operator, q, value in STEP.findall(example.response):
            p, q, value = int(p), int(q), int(value)
            assert {"+": p + q == value, "-": p - q == value, "*": p * q == value, "/": p == q * value}[operator]
            assert 2 <= value <= LARGEST
    assert 0.35 <= sum(example.right for example in found) / len(found) <= 0.5
    careless = Counter(example.response.startswith("So ") for example in found)
    assert careless[True] / len(found) == pytest.approx(Annotators.careless, abs=0.05)


def test_the_careful_without_slips_are_right_and_explain_every_step(judge):
    rng = random.Random(0)
    for problem in drawn(300):
        response, value = careful_response(problem, 0.0, rng)
        assert value == problem.gold
        assert [step[1] for step in STEP.findall(response)] == [step[1] for step in problem.template.steps]
        assert judge(response, problem.gold)["score"] == 1.0


def test_a_slip_changes_an_operation_and_what_follows_goes_on_from_there():
    rng = random.Random(0)
    kinds = Counter()
    for problem in drawn(500):
        response, value = careful_response(problem, 1.0, rng)
        steps = STEP.findall(response)
        others = set(possible(problem.values["a"], problem.values["b"])) - {problem.template.steps[0][1]}
        assert steps[0][1] in (others or problem.template.steps[0][1])
        assert int(steps[-1][3]) == value
        if len(steps) == 2 and "x" in problem.template.steps[1]:
            assert steps[0][3] in (steps[1][0], steps[1][2])
        kinds[len(problem.template.steps), len(steps)] += 1
    assert set(kinds) <= {(1, 1), (2, 2), (2, 1)}  # a second step that no operation allows is left out
    assert kinds[2, 1] < kinds[2, 2] / 4


def test_the_careless_stop_after_the_first_two_numbers():
    rng = random.Random(0)
    for problem in drawn(300):
        response, value = careless_response(problem, rng)
        ((p, operator, q, result),) = STEP.findall(response)
        assert (int(p), int(q)) == (problem.values["a"], problem.values["b"])
        assert possible(int(p), int(q))[operator] == int(result) == value


def test_possible_operations_are_whole_and_in_range():
    assert possible(12, 4) == {"+": 16, "-": 8, "*": 48, "/": 3}
    assert possible(4, 12) == {"+": 16, "*": 48}
    assert possible(60, 60) == {}


def test_no_calculation_is_held_out_or_left_to_rl():
    asked = {example.prompt.splitlines()[0] for example in SPEC.examples(SPEC.plan, 5, 500)}
    problems = drawn(500, seed=5)
    assert asked == {problem.question for problem in problems}
    assert {bucket_of(calculation_key(problem.template, problem.values)) for problem in problems} == {"pretrain"}
    held_out = drawn(500, bucket="test")
    assert {bucket_of(calculation_key(problem.template, problem.values)) for problem in held_out} == {"test"}


def test_the_same_seed_gives_the_same_demonstrations():
    first, again, other = (list(SPEC.examples(SPEC.plan, seed, 50)) for seed in (5, 5, 6))
    assert first == again != other
    careful = SPEC.examples(replace(SPEC.plan, annotators=Annotators(careless=0.0)), 5, 50)
    assert not any(example.response.startswith("So ") for example in careful)
