"""The Python functions and the installed command do what the launchers do."""

from pathlib import Path

import pandas
import pytest
from typer.testing import CliRunner

import recipes
from recipes import api, launch
from recipes.commands import app
from recipes.paths import ROOT
from recipes.runs.metrics import Step
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


def test_functions_and_rows_are_typed_as_files_of_the_runs_folder(monkeypatch, tmp_path):
    """The same rows are the same file, so that a run goes on; others are another, as changed data of a launcher's."""
    monkeypatch.setenv("ARTIFACTS_DIR", str(tmp_path))
    seen = []
    monkeypatch.setattr(launch, "run", lambda recipe, console, task, words: seen.append((recipe.data, words)) or 0)
    rows = [{"prompt": "1 + 1 =", "sum": 2}]
    for data in (rows, pandas.DataFrame(rows), rows * 2):
        recipes.train("custom", data=data, reward_func=[longer, shorter], experiment_name="mine", hardware="cpu")
    files = [data.train_files for data, _ in seen]
    assert files[0] == files[1] != files[2]
    assert Path(files[0]).is_relative_to(tmp_path / "runs" / "mine" / "python")
    assert seen[0][1][3].count("from_python.py:") == 2


def longer(completions, **columns):
    return [len(text) for text in completions]


def shorter(completions, **columns):
    return [-length for length in longer(completions)]


@pytest.mark.parametrize("option", [{"tools": len}, {"model": [len]}, {"reward_function_kwargs": {"f": len}}])
def test_what_cannot_be_typed_is_named(option):
    assert next(iter(option)) in mistake(lambda: recipes.train("custom", **option)).where
    for function in (recipes.train, recipes.evaluate):
        assert "task" in mistake(lambda function=function: function(len), "Python's").where
    for keys in (["worker.rollout.n=8"], "max_steps=1"):
        error = mistake(lambda keys=keys: recipes.train("countdown", keys), "keys is")
        assert "a mapping, such as" in error.fix


def test_a_list_is_a_list_for_an_engines_own_key_too(monkeypatch, tmp_path):
    monkeypatch.setenv("ARTIFACTS_DIR", str(tmp_path))
    seen = []
    monkeypatch.setattr(launch, "run", lambda recipe, *_: seen.append(recipe) or 0)
    contents = "actor_rollout_ref.actor.checkpoint.load_contents"
    files = [tmp_path / "a,b.parquet", "c.parquet"]
    recipes.train("countdown", {"global_profiler.steps": [1, 2], contents: ("model",), "data.train_files": files})
    assert (seen[0].verl["global_profiler.steps"], seen[0].verl[contents]) == ([1, 2], ["model"])
    assert seen[0].data.train_files[0] == str(files[0])


@pytest.mark.parametrize(
    ("option", "value", "named"),
    [
        *[("limit", 0, "equal to 1"), ("limit", "ten", "valid integer"), ("seed", 1.5, "valid integer")],
        *[("top_p", 0, "greater than 0"), ("temperature", -1, "equal to 0"), ("fresh", 7, "valid boolean")],
    ],
)
def test_an_option_of_an_evaluation_has_its_type_and_bounds_in_python_too(option, value, named):
    error = mistake(lambda: recipes.evaluate("custom", model_path=TINY, **{option: value}), named)
    assert option in error.where


def test_an_evaluation_takes_functions_and_rows_and_names_what_cannot_be_typed():
    assert "base_model_path" in mistake(lambda: recipes.evaluate("custom", base_model_path=[len]), "Python's").where
    assert "none.py" in mistake(lambda: recipes.evaluate("custom", reward_func=["none.py"], model_path=TINY)).what
    wrong = {"reward_func": longer, "data": [{"question": "1 + 1 ="}], "model_path": TINY}
    assert "rows.jsonl" in mistake(lambda: recipes.evaluate("custom", **wrong), "no column prompt").where


def test_a_result_shows_what_it_holds_in_a_few_lines(tmp_path):
    steps = [Step(0, {"val-core/math/acc/mean@1": 0.25}), Step(1, {"critic/score/mean": 0.5})]
    result = api.TrainingResult(0, tmp_path / "mine", [*steps, Step(2, {"val-core/math/acc/mean@1": 0.5})], None)
    assert repr(result).endswith("mine: step 2, exit code 0\nvalidation math: 0.250 (step 0) -> 0.500 (step 2)")
    assert result.history["critic/score/mean"].dropna().to_dict() == {1: 0.5}
    assert api.TrainingResult(1, tmp_path, [], None).history.empty


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
