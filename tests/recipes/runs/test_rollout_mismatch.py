"""When vLLM and the trainer are said to see different images, and when not."""

import json
import math

import pytest

from recipes.config import load
from recipes.runs.metrics import Step, read_history
from recipes.runs.rollout_mismatch import KL, MOST, bound, disagreement


@pytest.mark.parametrize(
    ("kl", "wrong"),
    [(3.6e-3, False), (-1e-3, False), (None, False), (1.3, True), (-0.3, True), (math.nan, True)],
)
def test_more_than_rounding_is_a_mismatch(kl, wrong):
    assert bool(disagreement(Step(1, {KL: kl}), MOST)) is wrong
    assert disagreement(Step(1, {KL: kl}), math.inf) is None


def test_the_update_measures_it_without_a_pass_before(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 1, "data": {f"actor/{KL}": 1.3}}) + "\n")
    assert disagreement(read_history(tmp_path / "metrics.jsonl")[0], MOST)


def test_runs_with_images_are_judged_by_a_bound_that_a_variable_changes():
    recipe = load("number_game", environ={"TINY": "0"}, hardware="gpu")
    assert (bound(recipe, {}), bound(recipe, {"MAX_ROLLOUT_KL": "0.5"})) == (MOST, 0.5)
    assert math.isinf(bound(load("countdown", environ={}, hardware="cpu"), {}))
