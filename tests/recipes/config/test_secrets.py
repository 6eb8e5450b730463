"""Secret arguments of a reward: the trainer's reward gets them, and no file, page or command has them."""

from __future__ import annotations

import importlib.util
import json

import pytest

from recipes.config import load, to_yaml
from recipes.config.rewards import reward_variables
from recipes.config.schema import Recipe, leaves
from recipes.config.secrets import is_secret, masked, masked_word, revealed
from recipes.engines import easyr1, verl
from recipes.errors import RecipeError
from recipes.runs.folder import script

KEY = "sk-7f3a"
REWARD = f"""
REWARD_TYPE = "batch"
def compute_score(data_source, solution_str, ground_truth, extra_info=None, api_key="", judge=None):
    return {{"score": float(api_key == {KEY!r} and judge == {{"hf_token": {KEY!r}, "name": "j"}})}}
"""
BATCH = (
    "def compute_score_batch(inputs, **kwargs):\n    return [{'overall': compute_score('', '', '', **kwargs)['score']}]"
)


def test_names_that_are_secret_and_no_key_of_a_recipe_is_one():
    assert all(map(is_secret, ("api_key", "a.b.OPENAI_API_KEY", "hf_token", "judge-password", "Authorization")))
    assert not any(map(is_secret, ("max_tokens", "tokenizer", "key", "author", "monkey", "filter_key", "token_count")))
    assert not [path for path in leaves(Recipe) if is_secret(path)]
    assert masked({"a": [{"token": "x", "n": 1}], "secret": ""}) == {"a": [{"token": "***", "n": 1}], "secret": ""}
    assert (
        masked_word("worker.reward.reward_function_kwargs.api_key=1")
        == "worker.reward.reward_function_kwargs.api_key=***"
    )


@pytest.mark.parametrize("engine", [verl, easyr1])
def test_the_trainers_reward_gets_what_its_command_and_files_do_not_have(engine, tmp_path, monkeypatch):
    file = tmp_path / "reward.py"
    file.write_text(REWARD + (BATCH if engine is easyr1 else ""))
    kwargs = f"worker.reward.reward_function_kwargs={{api_key: {KEY}, judge: {{hf_token: {KEY}, name: j}}}}"
    arguments = [f"worker.reward.reward_function={file}", kwargs]
    hardware = "cpu" if engine is verl else "gpu"
    recipe = load(
        "countdown", arguments=arguments, environ={"ENGINE": engine.__name__.rpartition(".")[2]}, hardware=hardware
    )
    keys, variables = engine.translate(recipe), reward_variables(recipe)
    assert KEY not in str(keys) + to_yaml(recipe) + script(["python"], variables)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    if engine is verl:
        place, name = (keys[f"reward.custom_reward_function.{part}"] for part in ("path", "name"))
    else:
        place, _, name = keys["worker.reward.reward_function"].rpartition(":")
    spec = importlib.util.spec_from_file_location("reward_as_the_trainer_loads_it", place)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function = getattr(module, name)
    if engine is verl:
        assert function("", "", "")["score"] == 1.0
    else:
        assert module.REWARD_TYPE == "batch"
        assert function([{}])[0]["overall"] == 1.0


def test_an_evaluation_of_a_run_asks_for_what_its_files_do_not_have():
    written = {"api_key": "***", "n": 1}
    assert revealed(written, {"RECIPES_REWARD_SECRETS": json.dumps({"api_key": KEY})}, "") == {"api_key": KEY, "n": 1}
    with pytest.raises(RecipeError, match="api_key is secret"):
        revealed(written, {}, "")
