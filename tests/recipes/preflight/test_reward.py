"""A reward that the trainer could not use is found before it starts."""

from __future__ import annotations

import pytest

from recipes.errors import RecipeError
from recipes.preflight import reward

HEAD = "def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):\n"


def tried(make, files, source, *changes):
    path = files / "my_reward.py"
    path.write_text(source)
    return reward.inspect(make(f"worker.reward.reward_function={path}", *changes))


def test_the_recipes_own_reward_passes(make):
    assert reward.inspect(make()) == []


@pytest.mark.parametrize(
    "body", ["    return 0.5", "    return {'score': 1, 'acc': True}", "    print('hi'); return 1"]
)
def test_floats_and_dicts_are_scores(make, files, body):
    assert tried(make, files, HEAD + body) == []


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import no_such_module_at_all", "fails at import: ModuleNotFoundError"),
        ("def broken(:\n", "fails at import: SyntaxError"),
        ("def score(): return 1", r"has no function compute_score \(it has score\)"),
        (HEAD + "    return float('nan')", "nan, not a finite number"),
        (HEAD + "    return {'score': float('inf')}", "inf, not a finite number"),
        (HEAD + "    return None", "None, not a finite number"),
        (HEAD + "    return {'reward': 1.0}", "has no 'score'"),
        (HEAD + "    return {'score': 1.0, **({'b': 1} if solution_str else {})}", "different keys"),
        (HEAD + "    return 1 / len(solution_str)", "raises ZeroDivisionError"),
        (HEAD + "    import os; os._exit(3)", "ended its process: exit code 3"),
        (HEAD + "    raise SystemExit('stop')", "ended its process: stop"),
    ],
)
def test_what_is_no_score_is_refused(make, files, source, message):
    with pytest.raises(RecipeError, match=message) as caught:
        tried(make, files, source)
    assert "my_reward.py" in caught.value.where
    assert "worker.reward.reward_function" in caught.value.where
    assert caught.value.fix


def test_the_line_that_raises_is_named(make, files):
    with pytest.raises(RecipeError) as caught:
        tried(make, files, HEAD + "    value = 1\n    return value / 0")
    assert "my_reward.py:3" in caught.value.where


def test_a_reward_that_never_returns(make, files, monkeypatch):
    monkeypatch.setattr(reward, "LIMIT_S", 1.0)
    with pytest.raises(RecipeError, match="took more than 1 s"):
        tried(make, files, HEAD + "    while True: pass")


def test_a_file_that_is_missing(make, files):
    with pytest.raises(RecipeError, match="no reward file"):
        reward.inspect(make(f"worker.reward.reward_function={files}/none.py"))


def test_another_function_and_its_arguments(make, files):
    source = "def other(data_source, solution_str, ground_truth, extra_info=None, weight=0): return 1 / weight"
    path = files / "named.py"
    path.write_text(source)
    key = f"worker.reward.reward_function={path}:other"
    assert reward.inspect(make(key, "worker.reward.reward_function_kwargs={weight: 2}")) == []
    with pytest.raises(RecipeError, match="ZeroDivisionError"):
        reward.inspect(make(key))


def test_easyr1_wants_a_list(make, files):
    path = files / "batch.py"
    path.write_text("def compute_score_batch(reward_inputs): return [{'overall': 1.0} for _ in reward_inputs]")
    recipe = make(f"worker.reward.reward_function={path}").model_copy(update={"engine": "easyr1"})
    assert reward.inspect(recipe) == []
    path.write_text("def compute_score_batch(reward_inputs): return 1.0")
    with pytest.raises(RecipeError, match="not one dict a response"):
        reward.inspect(recipe)
