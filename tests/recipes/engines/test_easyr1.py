"""EasyR1: the recipe's keys on its command line, rewards as it calls them, and the patched copy of its source."""

import ast
import json
import os
import re
import runpy
import shlex
import shutil
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from recipes.config import check, load
from recipes.config.names import easyr1_defaults
from recipes.config.schema import Recipe, leaves
from recipes.engines.easyr1 import source
from recipes.engines.easyr1 import translation as easyr1
from recipes.engines.verl import translation as verl
from recipes.errors import RecipeError
from recipes.paths import CONFIGS
from recipes.rewards import easyr1 as reward
from recipes.settings import flatten, nest
from recipes.yaml_text import dump, parse, read
from tests.mistakes import mistake

CONFIG = read(CONFIGS / "official" / "easyr1_config.yaml")["values"]
LAUNCHERS = Path(__file__).with_name("easyr1_launchers.txt").read_text().splitlines()[1:]


def countdown(*arguments: str, **environ: str) -> Recipe:
    return load("countdown", arguments=["engine=easyr1", *arguments], environ=environ, hardware="gpu")


def test_every_key_is_easyr1s_and_omegaconf_reads_back_the_command_line():
    """EasyR1 reads its arguments with OmegaConf."""
    recipe = countdown("trainer.project_name=a: b # c")
    assert set(easyr1.translate(recipe)) <= {*easyr1_defaults(), "worker.rollout.val_override_config"}
    read = OmegaConf.to_container(OmegaConf.from_dotlist(easyr1.overrides(recipe)))
    assert flatten(read) == flatten(easyr1.translate(recipe))
    keys = easyr1.translate(countdown(USE_KL_LOSS="1", KL_LOSS_COEF="0.5", KL_LOSS_TYPE="abs"))
    assert (keys["algorithm.kl_coef"], keys["algorithm.kl_penalty"]) == (0.5, "abs"), "it has one weight of KL"


@pytest.mark.parametrize("line", LAUNCHERS, ids=lambda line: line.partition(":")[0])
def test_easyr1s_own_launchers_act_and_verl_answers_each_key(line, tmp_path):
    """On verl, what the answers say to write is all that is missing."""
    words, _, unable = line.partition(": ")[2].partition(" |")
    given = dict(word.split("=", 1) for word in shlex.split(words))
    (tmp_path / "config.yaml").write_text(dump(nest(CONFIG)))

    def loaded(engine: str, settings: dict) -> Recipe:
        arguments = [f"engine={engine}", *(f"{key}={value}" for key, value in settings.items())]
        recipe = load(str(tmp_path / "config.yaml"), arguments=arguments, environ={}, hardware="gpu")
        check(recipe)
        return recipe

    keys = flatten(easyr1.translate(loaded("easyr1", given)))
    asked = flatten({key: parse(value) for key, value in given.items()})
    places = {key for key in asked if key in leaves(Recipe) and leaves(Recipe)[key].info.path}  # and what we hand on
    there = {key for key in asked.keys() - places if not key.startswith(("worker.reward.", "trainer.logger"))}
    assert {key: keys[key] for key in there} == {key: asked[key] for key in there}
    errors = {}
    try:
        verl.translate(loaded("verl", given))
    except RecipeError as error:
        found = getattr(error, "errors", (error,))
        errors = {re.search(r"[a-z]+(\.\w+)+", each.what)[0]: each.fix for each in found}
    assert errors.keys() == set(unable.split())
    instead = [re.search(r"(?:write|set) (\S+?)(?:=| to )(\S+)$", fix) for fix in errors.values()]
    mended = {key: value for key, value in given.items() if key not in errors}
    verl.translate(loaded("verl", mended | dict(found.groups() for found in instead if found)))


def test_every_key_of_easyr1_acts_there_and_is_answered_on_verl():
    """`easyr1.` before a name says whose it is; the answer of each of EasyR1's own keys is one that verl takes."""
    for name in easyr1_defaults().keys() - leaves(Recipe).keys() - {"worker.actor.loss_avg_mode"}:
        value = {"worker.actor.fsdp.mp_reduce_dtype": "bf16"}.get(name, 1)
        assert easyr1.translate(countdown(f"easyr1.{name}={value}"))[name] == value
        recipe = load("countdown", arguments=[f"easyr1.{name}={value}"], environ={}, hardware="gpu")
        fix = mistake(lambda recipe=recipe: verl.translate(recipe), name).fix
        assert fix.startswith("leave it out, since") or verl.translate(
            load("countdown", arguments=[fix.removeprefix("write ")], environ={}, hardware="gpu")
        ), fix
    assert "worker.rollout.n" in mistake(lambda: countdown("easyr1.worker.rolout.n=1"), "rolout").fix
    assert countdown("easyr1.worker.rollout.n=3").worker.rollout.n == 3


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


@needs_easyr1
def test_the_known_keys_are_the_fields_of_easyr1s_dataclasses():
    classes = {}
    for file in (
        "trainer/config.py",
        *(f"workers/{part}config.py" for part in ("", "actor/", "critic/", "reward/", "rollout/")),
    ):
        body = ast.parse((HOME / "verl" / file).read_text()).body
        classes |= {each.name: each.body for each in body if isinstance(each, ast.ClassDef)}

    def fields(name: str, prefix: str = "") -> list[str]:
        own = [
            each for each in classes[name] if isinstance(each, ast.AnnAssign) and "init=False" not in ast.unparse(each)
        ]
        kinds = {f"{prefix}{each.target.id}": ast.unparse(each.annotation) for each in own}
        return [name for at, kind in kinds.items() for name in (fields(kind, f"{at}.") if kind in classes else [at])]

    assert easyr1_defaults().keys() == set(fields("PPOConfig")) - {"worker.rollout.val_override_config"}
