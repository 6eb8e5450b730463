"""EasyR1: the recipe's keys on its command line, rewards as it calls them, and the patched copy of its source."""

import json
import os
import runpy
import shutil
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from recipes.config import load
from recipes.config.layers import flatten, read
from recipes.config.schema import Recipe
from recipes.engines.easyr1 import source
from recipes.engines.easyr1 import translation as easyr1
from recipes.paths import CONFIGS
from recipes.rewards import easyr1 as reward
from tests.mistakes import mistake

DEFAULTS = read(CONFIGS / "official" / "easyr1_defaults.yaml")["values"]


def countdown(*arguments: str, **environ: str) -> Recipe:
    return load("countdown", arguments=["engine=easyr1", *arguments], environ=environ, hardware="gpu")


def test_every_key_is_easyr1s_and_omegaconf_reads_back_the_command_line():
    """EasyR1 reads its arguments with OmegaConf."""
    recipe = countdown("trainer.project_name=a: b # c")
    assert set(easyr1.translate(recipe)) <= {*DEFAULTS, "worker.rollout.val_override_config"}
    read = OmegaConf.to_container(OmegaConf.from_dotlist(easyr1.overrides(recipe)))
    assert flatten(read) == flatten(easyr1.translate(recipe))
    keys = easyr1.translate(countdown(USE_KL_LOSS="1", KL_LOSS_COEF="0.5", KL_LOSS_TYPE="abs"))
    assert (keys["algorithm.kl_coef"], keys["algorithm.kl_penalty"]) == (0.5, "abs"), "it has one weight of KL"


@pytest.mark.parametrize(
    "argument", ["actor_rollout_ref.rollout.over_sample_rate=0.1", "data.train_files=[a.parquet,b.parquet]"]
)
def test_what_easyr1_cannot_do_is_named(argument):
    error = mistake(lambda: easyr1.translate(countdown(argument)))
    assert argument.split("=")[0].removeprefix("actor_rollout_ref.rollout.") in error.what
    assert argument in error.where


REWARD = """
from helper_of_r import TEN

def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return {'score': len(solution_str) / TEN, 'acc': solution_str == ground_truth, 'reason': data_source}
"""
INPUTS = [
    {"response": "42", "response_length": 1, "ground_truth": json.dumps({"data_source": "qa", "ground_truth": "42"})},
    {"response": "four", "response_length": 1, "ground_truth": "4"},
]


def test_one_response_at_a_time_with_the_source_out_of_the_truth(tmp_path):
    (tmp_path / "helper_of_r.py").write_text("TEN = 10\n")
    (tmp_path / "r.py").write_text(REWARD)
    keys = easyr1.translate(countdown(f"worker.reward.reward_function={tmp_path / 'r.py'}"))
    path, _, name = keys["worker.reward.reward_function"].rpartition(":")
    arguments = keys["worker.reward.reward_function_kwargs"]
    first, second = runpy.run_path(path)[name](INPUTS, **arguments)  # EasyR1 loads the file by its path
    accuracies = dict.fromkeys(("acc", "accuracy", "qa/acc", "qa/accuracy"), 1.0)
    assert first == {"overall": 0.2, "qa/score": 0.2, **accuracies}
    assert second == {"overall": 0.4, "acc": 0.0, "accuracy": 0.0}


def test_the_score_is_overall_whatever_a_part_is_called_and_numpys_numbers_are_pythons(tmp_path):
    head = "import numpy as np\ndef compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
    answer = "{'score': np.float32(0.25), 'overall': 9.0, 'bonus': np.float32(0.5)}"
    (tmp_path / "r.py").write_text(f"{head}    return {answer}\n")
    (found,) = reward.compute_score_batch(INPUTS[1:], str(tmp_path / "r.py"))
    assert json.dumps(found, sort_keys=True) == '{"bonus": 0.5, "overall": 0.25}'


HOME = Path(os.environ.get("EASYR1_HOME", "/nowhere"))
needs_easyr1 = pytest.mark.skipif("EASYR1_HOME" not in os.environ, reason="EASYR1_HOME is not set")


@pytest.fixture
def artifacts(tmp_path, monkeypatch):
    monkeypatch.setenv("ARTIFACTS_DIR", str(tmp_path / "artifacts"))
    return tmp_path / "artifacts"


@needs_easyr1
@pytest.mark.usefixtures("artifacts")
@pytest.mark.parametrize("on_cpu", [False, True])
def test_the_copy_is_patched_once_and_the_source_stays(on_cpu):
    home = source.patched(HOME, on_cpu)
    assert source.digest(HOME) == source.DIGEST != source.digest(home)
    assert source.patched(HOME, on_cpu) == home
    assert source.check({"EASYR1_HOME": str(HOME)}, on_cpu) == []


@needs_easyr1
def test_a_patch_that_does_not_apply_names_the_file(artifacts, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(HOME / "verl", copy / "verl", ignore=shutil.ignore_patterns("__pycache__"))
    file = copy / "verl/trainer/main.py"
    file.chmod(0o644)
    file.write_text(file.read_text().replace("ray.init(", "ray.init (", 1))
    assert mistake(lambda: source.patched(copy, on_cpu=False), "verl/trainer/main.py").where == str(copy)
    assert not list((artifacts / "easyr1").iterdir()), "half a copy is none"


def test_a_home_that_is_not_easyr1_is_named_with_what_to_type(tmp_path, monkeypatch):
    (tmp_path / "verls" / "verl" / "trainer").mkdir(parents=True)
    (tmp_path / "verls" / "verl" / "trainer" / "main_ppo.py").touch()
    monkeypatch.setattr(source, "DEFAULT", tmp_path / "none")
    for environ in ({"EASYR1_HOME": str(tmp_path / "verls")}, {"EASYR1_HOME": str(tmp_path)}, {}):
        error = mistake(lambda environ=environ: source.find(environ), str(tmp_path))
        assert "setup_env.sh easyr1" in error.fix
    mistake(lambda: source.fetch(tmp_path / "easyr1", str(tmp_path / "no-repository")), "git fetch")
    assert not (tmp_path / "easyr1").exists(), "a clone is whole or not there"
