"""Several rewards as the trainers call them, and rewards that import what lies beside them."""

import asyncio
import importlib
import json
import sys

import pytest
from omegaconf import OmegaConf
from verl.trainer.ppo.reward import get_custom_reward_fn

from recipes.config import load
from recipes.engines.verl import translation as verl
from recipes.rewards import easyr1 as easyr1_reward
from recipes.rewards import weighted
from recipes.rewards.metrics import logged_parts, reward_metrics
from recipes.settings import nest

FILE = """
from __future__ import annotations
import asyncio
import dataclasses
from helper_of_these import HALF

HEAD = 1

@dataclasses.dataclass
class Half:
    value: float

def number(data_source, solution_str, ground_truth, extra_info=None):
    return Half(HALF).value

def acc(data_source, solution_str, ground_truth, extra_info=None, *, bonus=0.0):
    return {"score": 1.0 + bonus, "acc": True}

def accuracy(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    return {"score": -1.0, "accuracy": 0.0, "reason": "wrong", "seen": len(kwargs)}

async def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    await asyncio.sleep(0)
    return float(ground_truth in solution_str)
"""
CALL = {"data_source": "x", "solution_str": "it is 4", "ground_truth": "4", "extra_info": {}}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rewards")
    (folder / "helper_of_these.py").write_text("HALF = 0.5\n")
    (folder / "mine.py").write_text(FILE)
    return folder / "mine.py"


THREE = {"score": 0.75, "reward/number": 0.5, "reward/acc": 1.5, "reward/mine": 1.0}
TWO = {"score": 2.0, "reward/accuracy": -1.0, "reward/acc": 1.5, "reason": "wrong"}


@pytest.mark.parametrize(
    ("names", "weights", "accuracy", "expected"),
    [([":number", ":acc", ""], [1, 0, 0.25], 1.0, THREE), ([":accuracy", ":acc"], [1, 2], 0.0, TWO)],
)
def test_the_score_is_the_weighted_sum_and_every_reward_is_a_part(path, names, weights, accuracy, expected):
    rewards = [f"{path}{name}" for name in names]
    found = weighted.compute_score(**CALL, rewards=rewards, weights=weights, bonus=0.5)
    assert found == pytest.approx({**expected, "acc": accuracy, "accuracy": accuracy})
    entries = [{"response": "it is 4", "ground_truth": json.dumps({"data_source": "x", "ground_truth": "4"})}]
    arguments = {"rewards": rewards, "weights": weights, "bonus": 0.5}
    (of_easyr1,) = easyr1_reward.compute_score_batch(entries, weighted.__file__, arguments)
    same = {name: value for name, value in expected.items() if name.startswith("reward/")}
    assert of_easyr1.items() >= {"overall": expected["score"], **same}.items()


def test_a_reward_of_easyr1s_form_in_a_sum_gets_the_tokens_that_easyr1_counted(tmp_path):
    path = tmp_path / "long.py"
    path.write_text(
        "def compute_score(reward_inputs):\n    return [{'overall': each['response_length']} for each in reward_inputs]"
    )
    entries = [{"response": "it is 4", "response_length": 3, "ground_truth": "4"}]
    arguments = {"rewards": [str(path)], "weights": [2]}
    (found,) = easyr1_reward.compute_score_batch(entries, weighted.__file__, arguments)
    assert found["overall"] == 6.0


def test_a_reason_that_is_none_sometimes_is_a_part_always(tmp_path):
    path = tmp_path / "reasons.py"
    path.write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
        "    return {'score': 1.0, 'reason': solution_str or None}"
    )
    found = [weighted.compute_score("x", text, "4", rewards=[str(path)], weights=[1]) for text in ("", "late")]
    assert [each["reason"] for each in found] == [None, "late"]
    other = tmp_path / "numbers.py"
    other.write_text(
        "def compute_score(*_, solution_str, **__):\n    return {'score': 1.0, 'reason': len(solution_str) or None}"
    )
    both = {"rewards": [str(other), str(path)], "weights": [1, 1]}
    assert [weighted.compute_score("x", text, "4", **both)["reason"] for text in ("", "late")] == [None, "4"]


def test_verl_calls_a_reward_that_imports_its_helper_and_dataclasses(path):
    """By the file's path; what lies in its folder takes no other module's place."""
    path.with_name("colorsys.py").write_text("raise RuntimeError('beside a reward')")
    sys.modules.pop("colorsys", None)
    found = []
    for words in ([f"--reward_func={path}:number"], ["--reward_func", f"{path}:number", f"{path}:acc"]):
        keys = verl.translate(load("custom", arguments=words, environ={}, hardware="cpu"))
        reward = get_custom_reward_fn(OmegaConf.create(nest(keys)))
        found.append(asyncio.run(reward(**CALL)))
    both = {"score": 1.5, "acc": 1.0, "accuracy": 1.0, "reward/number": 0.5, "reward/acc": 1}
    assert found == [{"score": 0.5}, both]
    importlib.import_module("colorsys")


def test_metrics_of_rewards_are_means_and_the_spread_is_of_groups():
    results = [{"reward/a": value, "acc": value} for value in (0.0, 1.0, 1.0, 1.0)]
    metrics = reward_metrics(["p", "p", "q", "q"], [0.0, 1.0, 0.1 + 0.2 + 0.7, 1.0], results)
    spread = {"reward_std": 0.5 * 2**-0.5, "frac_reward_zero_std": 0.5}
    assert metrics == pytest.approx({"reward/a": 0.75, "reward_accuracy": 0.75} | spread)
    assert reward_metrics(["p", "q"], [0.0, 1.0], [{}, {}]) == {}, "groups of one have no spread"
    assert logged_parts(metrics) == ["reward/a"]
    of_easyr1 = ["reward/overall", "reward/accuracy", "reward/reward/a", "reward/a"]
    assert logged_parts(of_easyr1) == ["reward/a"]
