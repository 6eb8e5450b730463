"""EasyR1: the recipe's keys on its command line, and rewards for one response, which it calls with whole batches."""

from __future__ import annotations

import importlib.util
import json

import pytest
from omegaconf import OmegaConf

from recipes.config import load
from recipes.config.layers import flatten, read
from recipes.config.schema import Recipe
from recipes.engines.easyr1 import translation as easyr1
from recipes.errors import RecipeError
from recipes.paths import CONFIGS

DEFAULTS = read(CONFIGS / "official" / "easyr1_defaults.yaml")["values"]


def countdown(*arguments: str, **environ: str) -> Recipe:
    return load("countdown", arguments=["engine=easyr1", *arguments], environ=environ, hardware="gpu")


def test_every_key_is_easyr1s_and_omegaconf_reads_back_the_command_line():
    """EasyR1 reads its arguments with OmegaConf."""
    recipe = countdown("trainer.project_name=a: b # c")
    assert set(easyr1.translate(recipe)) <= {*DEFAULTS, "worker.rollout.val_override_config"}
    read = OmegaConf.to_container(OmegaConf.from_dotlist(easyr1.overrides(recipe)))
    assert flatten(read) == flatten(easyr1.translate(recipe))


def test_the_weight_of_kl_in_the_loss_becomes_the_one_weight():
    keys = easyr1.translate(countdown(USE_KL_LOSS="1", KL_LOSS_COEF="0.5", KL_LOSS_TYPE="abs"))
    assert (keys["algorithm.kl_coef"], keys["algorithm.kl_penalty"]) == (0.5, "abs")


@pytest.mark.parametrize(
    "argument", ["actor_rollout_ref.rollout.over_sample_rate=0.1", "data.train_files=[a.parquet,b.parquet]"]
)
def test_what_easyr1_cannot_do_is_named(argument):
    with pytest.raises(RecipeError) as raised:
        easyr1.translate(countdown(argument))
    assert argument.split("=")[0].removeprefix("actor_rollout_ref.rollout.") in raised.value.what
    assert argument in raised.value.where


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
    (tmp_path / "helper_of_r.py").write_text("TEN = 10\n")
    (tmp_path / "r.py").write_text("from helper_of_r import TEN\n\n" + head + DICT.replace("10", "TEN"))
    location, arguments = easyr1.reward(recipe_with(tmp_path / "r.py"))
    first, second = called(location, arguments, INPUTS)
    accuracies = dict.fromkeys(("acc", "accuracy", "qa/acc", "qa/accuracy"), 1.0)
    assert first == {"overall": 0.2, "qa/score": 0.2, **accuracies}
    assert second == {"overall": 0.4, "acc": 0.0, "accuracy": 0.0}
