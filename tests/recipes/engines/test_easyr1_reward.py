"""A reward for single responses works under EasyR1 as well, which calls rewards with whole batches."""

from __future__ import annotations

import importlib.util
import json
import math

import pytest

from recipes.config import load
from recipes.engines import easyr1
from recipes.errors import RecipeError
from recipes.preflight import reward

PLAIN = "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
DICT = "    return {'score': len(solution_str) / 10, 'acc': solution_str == ground_truth, 'reason': data_source}\n"


def recipe_with(path, *words):
    return load(
        "custom", arguments=["--reward_func", str(path), "--engine", "easyr1", *words], environ={}, hardware="gpu"
    )


def called(location, arguments, inputs):
    """As EasyR1 does: the file by its path, the arguments bound."""
    path, _, name = location.rpartition(":")
    spec = importlib.util.spec_from_file_location("custom_module", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)(inputs, **arguments)


INPUTS = [
    {"response": "42", "response_length": 1, "ground_truth": json.dumps({"data_source": "qa", "ground_truth": "42"})},
    {"response": "four", "response_length": 1, "ground_truth": "4"},
]


@pytest.mark.parametrize("head", [PLAIN, f"async {PLAIN}"])
def test_one_response_at_a_time_with_the_source_out_of_the_truth(tmp_path, head):
    (tmp_path / "r.py").write_text(head + DICT)
    location, arguments = easyr1.reward(recipe_with(tmp_path / "r.py"))
    first, second = called(location, arguments, INPUTS)
    assert first == {"overall": 0.2, "acc": 1.0, "qa/acc": 1.0, "qa/score": 0.2}
    assert second == {"overall": 0.4, "acc": 0.0}


def test_a_number_alone_and_further_arguments(tmp_path):
    (tmp_path / "r.py").write_text(PLAIN.replace("=None", "=None, weight=1") + "    return weight * len(solution_str)")
    recipe = recipe_with(tmp_path / "r.py", "worker.reward.reward_function_kwargs={weight: 3}")
    assert [entry["overall"] for entry in called(*easyr1.reward(recipe), INPUTS)] == [6, 12]
    (tmp_path / "r.py").write_text(PLAIN + "    return float('nan')")  # the trial before the start reports it
    assert math.isnan(called(*easyr1.reward(recipe_with(tmp_path / "r.py")), INPUTS)[0]["overall"])


@pytest.mark.parametrize(
    "source",
    [
        "def compute_score_batch(reward_inputs): ...\ndef compute_score(*a): ...",
        "from somewhere import compute_score_batch\ndef compute_score(*a): ...",
        "compute_score_batch = print\ndef compute_score(*a): ...",
        "def other(): ...",
        "def broken(:",
    ],
)
def test_a_file_with_a_batch_function_or_none_at_all_is_called_as_it_is(tmp_path, source):
    path = tmp_path / "r.py"
    path.write_text(source)
    assert easyr1.reward(recipe_with(path)) == (f"{path}:compute_score_batch", {})
    assert easyr1.reward(recipe_with(f"{path}:mine")) == (f"{path}:mine", {})


def test_the_trial_before_the_start_sees_through_the_adapter(tmp_path, monkeypatch):
    monkeypatch.setattr(
        reward, "rows_by_source", lambda files: ([{"data_source": "qa", "answer": "42", "extra_info": None}], 1)
    )
    path = tmp_path / "r.py"
    path.write_text(PLAIN + DICT)
    assert reward.check_reward(recipe_with(path)) == []
    path.write_text(PLAIN + "    return 1 / 0")
    with pytest.raises(RecipeError, match="raises ZeroDivisionError"):
        reward.check_reward(recipe_with(path))
