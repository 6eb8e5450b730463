"""The annotators of word problems: right arithmetic, honest about what is right, only pretraining's calculations."""

from __future__ import annotations

import random
import re
from collections import Counter
from itertools import islice

import pytest

from recipes.data.rewards import load_reward
from recipes.data.splits import bucket_of
from recipes.tasks.gsm8k.pretraining import LARGEST, SPEC, Annotators, careful_response, careless_response, possible
from recipes.tasks.gsm8k.problems import TINY, calculation_key, word_problems
from recipes.tasks.gsm8k.rows import DATA_SOURCE

STEP = re.compile(r"(\d+) ([-+*/]) (\d+) = (\d+)")
SCORE = load_reward("reward_functions/gsm8k.py").compute_score


def drawn(count, seed=0):
    return list(islice(word_problems(TINY, ("pretrain",), seed=seed), count))


def test_demonstrations_state_truly_whether_they_are_right():
    problems, examples = drawn(1000, seed=3), list(SPEC.examples(SPEC.plan, 3, 1000))
    for example, problem in zip(examples, problems, strict=True):
        assert example.prompt.startswith(problem.question)
        result = SCORE(DATA_SOURCE, example.response, str(problem.gold))
        assert (result["accuracy"], result["format"]) == (float(example.right), 1.0), example
        for p, operator, q, value in STEP.findall(example.response):
            p, q, value = int(p), int(q), int(value)
            assert {"+": p + q == value, "-": p - q == value, "*": p * q == value, "/": p == q * value}[operator]
            assert 2 <= value <= LARGEST
    assert {bucket_of(calculation_key(problem.template, problem.values)) for problem in problems} == {"pretrain"}
    assert 0.35 <= sum(example.right for example in examples) / len(examples) <= 0.5
    careless = sum(example.response.startswith("So ") for example in examples)
    assert careless / len(examples) == pytest.approx(Annotators.careless, abs=0.05)
    assert examples[:20] == list(SPEC.examples(SPEC.plan, 3, 20)) != list(SPEC.examples(SPEC.plan, 6, 20))


def test_careful_annotators_explain_every_step_and_careless_ones_the_first_two_numbers():
    rng = random.Random(0)
    for problem in drawn(300):
        response, value = careful_response(problem, 0.0, rng)
        assert [step[1] for step in STEP.findall(response)] == [step[1] for step in problem.template.steps]
        assert (value, SCORE(DATA_SOURCE, response, str(problem.gold))["score"]) == (problem.gold, 1.0)
        response, value = careless_response(problem, rng)
        ((p, operator, q, result),) = STEP.findall(response)
        assert (int(p), int(q)) == (problem.values["a"], problem.values["b"])
        assert possible(int(p), int(q))[operator] == int(result) == value
    assert possible(12, 4) == {"+": 16, "-": 8, "*": 48, "/": 3}
    assert (possible(4, 12), possible(60, 60)) == ({"+": 16, "*": 48}, {})


def test_a_slip_changes_an_operation_and_what_follows_goes_on_from_there():
    rng, kinds = random.Random(0), Counter()
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
