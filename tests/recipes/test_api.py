"""The Python functions and the installed command do what the launchers do."""

import pytest
from typer.testing import CliRunner

import recipes
from recipes import api, launch
from recipes.commands import app
from recipes.paths import ROOT
from tests.mistakes import mistake

TINY = ROOT / "recipes" / "tasks" / "custom" / "tiny"


def test_train_hands_on_what_a_user_would_type(monkeypatch, tmp_path):
    monkeypatch.setenv("ARTIFACTS_DIR", str(tmp_path))
    seen = []
    monkeypatch.setattr(launch, "run", lambda recipe, console, task, words: seen.append((recipe, words)) or 3)
    result = recipes.train("countdown", {"worker.rollout.n": 8}, hardware="cpu", max_steps=1, experiment_name="mine")
    ((recipe, words),) = seen
    assert (recipe.worker.rollout.n, recipe.trainer.max_steps, recipe.hardware) == (8, 1, "cpu")
    assert words == ["worker.rollout.n=8", "--hardware", "cpu", "--max_steps", "1", "--experiment_name", "mine"]
    assert (result.exit_code, result.folder) == (3, tmp_path / "runs" / "mine")
    assert (result.steps, result.validations) == ([], {})
    assert "max_step" in mistake(lambda: recipes.train("countdown", max_step=1)).what


@pytest.mark.parametrize("option", [{"reward_function": len}, {"data": [{"prompt": "1 + 1 =", "answer": "2"}]}])
def test_what_cannot_be_typed_is_named(option):
    assert next(iter(option)) in mistake(lambda: recipes.train("custom", **option)).where
    for function in (recipes.train, recipes.evaluate):
        assert "task" in mistake(lambda function=function: function(len), "Python's").where


@pytest.mark.parametrize("option", [{"reward_func": len}, {"reward_func": [len]}, {"data": [{"prompt": "1 + 1 ="}]}])
def test_what_cannot_be_typed_is_no_option_of_an_evaluation_either(option):
    assert next(iter(option)) in mistake(lambda: recipes.evaluate("custom", **option), "Python's").where
    assert "none.py" in mistake(lambda: recipes.evaluate("custom", reward_func=["none.py"], model_path=TINY)).what


def test_evaluate_raises_what_a_user_can_mend_inside_a_notebooks_loop(tmp_path):
    import asyncio

    async def cell():
        return api.evaluate("countdown", model_path=str(tmp_path / "none"))

    mistake(lambda: asyncio.run(cell()))
    assert "limit" in mistake(lambda: api.evaluate("countdown", limits=3)).fix


def test_a_dry_run_plans_and_trains_nothing(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("ARTIFACTS_DIR", str(tmp_path))
    result = recipes.train("countdown", dry_run=True, hardware="cpu", max_steps=1)
    assert (result.exit_code, result.steps) == (0, [])
    assert "# total steps: 1" in capsys.readouterr().out
    planned = CliRunner().invoke(app, ["train", "countdown", "--dry_run", "--hardware", "cpu", "--max_steps", "1"])
    assert planned.exit_code == 0, planned.output
    assert "# total steps: 1" in planned.output
