"""Four layers, each key with the layer that set it, and every mistake in a layer with its name and place."""

from __future__ import annotations

import subprocess
import sys

import pytest
import yaml

from recipes.config import check, load, path_keys, tasks, to_yaml
from recipes.config.schema import Recipe, leaves
from recipes.errors import RecipeError
from recipes.paths import ROOT


def message(call, *arguments, **named) -> str:
    with pytest.raises(RecipeError) as raised:
        call(*arguments, **named)
    return str(raised.value)


def test_later_layers_win(resolve):
    assert resolve().data.rollout_batch_size == 64
    assert resolve(hardware="cpu").data.rollout_batch_size == 8
    assert resolve(hardware="cpu", ROLLOUT_BATCH_SIZE="16").data.rollout_batch_size == 16
    argument = "data.rollout_batch_size=32"
    assert resolve(argument, hardware="cpu", ROLLOUT_BATCH_SIZE="16").data.rollout_batch_size == 32


def test_the_hardwares_file_wins_over_the_recipe(resolve):
    assert resolve(hardware="cpu").trainer.n_gpus_per_node == 1
    assert resolve(hardware="cpu", GPUS_PER_NODE="2").trainer.n_gpus_per_node == 2
    assert resolve().trainer.n_gpus_per_node == 8


def test_every_key_knows_its_layer(resolve):
    recipe = resolve("worker.rollout.n=4", hardware="cpu", LR="2e-6")
    layers = {
        "algorithm.kl_coef": "recipe",
        "data.rollout_batch_size": "embedded",
        "worker.rollout.dtype": "hardware",
        "worker.actor.optim.lr": "environment",
        "worker.rollout.n": "argument",
        "worker.rollout.top_p": "default",
    }
    assert {key: recipe.source_of(key).layer for key in layers} == layers
    assert recipe.source_of("worker.actor.optim.lr").where == "variable LR=2e-6"
    assert recipe.source_of("worker.rollout.dtype").where == "configs/hardware/cpu.yaml"


def test_embedded_is_on_without_a_gpu_unless_told_otherwise(resolve):
    assert resolve(hardware="cpu").embedded_on
    assert not resolve().embedded_on
    assert resolve(EMBEDDED="1").embedded_on
    assert not resolve(hardware="cpu", EMBEDDED="0").embedded_on
    assert resolve("embedded=yes").data.rollout_batch_size == 8


def test_hardware_by_argument_variable_and_file(write, monkeypatch):
    path = str(write("hardware: cpu\n"))
    assert load(path, environ={}).hardware == "cpu"
    assert load(path, environ={"HARDWARE": "gpu"}).hardware == "gpu"
    assert load(path, environ={"HARDWARE": "gpu"}, arguments=["hardware=cpu"]).hardware == "cpu"
    assert "did you mean gpu" in message(load, path, environ={"HARDWARE": "gpus"})


def test_names_follow_the_file_and_the_experiment(write, monkeypatch, tmp_path):
    monkeypatch.setenv("ARTIFACTS_DIR", str(tmp_path / "made"))
    recipe = load(str(write("{}", "mine.yaml")), environ={}, hardware="gpu")
    assert recipe.name == recipe.trainer.experiment_name == "mine"
    assert recipe.trainer.save_checkpoint_path == str(tmp_path / "made/checkpoints/mine")
    other = load(str(write("{}", "mine.yaml")), environ={"EXPERIMENT_NAME": "second"}, hardware="gpu")
    assert other.trainer.validation_data_dir == str(tmp_path / "made/runs/second/validation")
    assert other.name == "mine"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "data: {rollout_batchsize: 3}",
            ["unknown key data.rollout_batchsize", "toy.yaml", "data.rollout_batch_size?"],
        ),
        ("rollout: {n: 3}", ["unknown key rollout.n", "did you mean worker.rollout.n?"]),
        ("worker: 3", ["worker is a group of keys", "3"]),
        ("worker: {rollout: {n: many}}", ["worker.rollout.n is 'many'", "expected whole number", "toy.yaml"]),
        ("worker: {rollout: {n: -1}}", ["worker.rollout.n is -1", "greater than 0"]),
        ("algorithm: {adv_estimator: gpro}", ["'gpro'", "did you mean grpo?"]),
        ("embedded: {data: {sed: 1}}", ["unknown key data.sed", "toy.yaml, embedded", "data.seed"]),
        ("embedded: 3", ["expected keys and values", "3"]),
        ("data: {seed: 1, seed: 2}", ["not valid YAML", "already on line 1"]),
        ("data: [", ["not valid YAML", "line"]),
        ("- 1", ["must hold keys and values"]),
        ("verl: {actor_rollout_ref: {rollout: {sed: 1}}}", ["verl has no key actor_rollout_ref.rollout.sed", "seed?"]),
        ("verl: {actor_rollout_ref.rollout.over_sample_rate: much}", ["'much'", "another type"]),
        ("verl: {actor_rollout_ref.rollout: 3}", ["is a group of verl's keys"]),
        (
            "data: {rollout_batch_size: 8}\nverl: {data: {train_batch_size: 4}}",
            ["data.rollout_batch_size is 8", "data.train_batch_size, is 4", "set one of the two"],
        ),
    ],
)
def test_a_mistake_in_a_file_is_named_with_its_place(write, text, words):
    said = message(load, str(write(text)), environ={}, hardware="gpu")
    for word in words:
        assert word in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["max_steps"], ["'max_steps' is not key=value"]),
        (["trainer.max_step=3"], ["unknown key trainer.max_step", "did you mean trainer.max_steps?"]),
        (["trainer.max_steps=1", "trainer.max_steps=2"], ["given twice"]),
        (["trainer.max_steps=soon"], ["trainer.max_steps is 'soon'", "whole number or null"]),
        (["actor_rollout_ref.model.lora_rnk=8"], ["verl has no key", "actor_rollout_ref.model.lora_rank?"]),
        (
            ["worker.rollout.n=4", "actor_rollout_ref.rollout.n=8"],
            ["worker.rollout.n is 4", "actor_rollout_ref.rollout.n, is 8"],
        ),
    ],
)
def test_a_mistake_in_an_argument_is_named(resolve, arguments, words):
    said = message(resolve, *arguments)
    for word in words:
        assert word in said


def test_variable_and_verls_own_name_may_not_disagree(resolve):
    argument = "actor_rollout_ref.rollout.tensor_model_parallel_size=4"
    assert "TENSOR_PARALLEL_SIZE=2" in message(resolve, argument, TENSOR_PARALLEL_SIZE="2")
    assert resolve(argument, TENSOR_PARALLEL_SIZE="4").worker.rollout.tensor_parallel_size == 4
    assert resolve(argument).worker.rollout.tensor_parallel_size == 4, "an argument wins over the recipe's file"


def test_verls_own_keys_are_kept_where_the_schema_has_no_name_for_them(resolve):
    recipe = resolve(
        "actor_rollout_ref.rollout.over_sample_rate=0.1", "+ray_kwargs.ray_init.num_gpus=2", "trainer.use_v1=false"
    )
    assert recipe.verl == {
        "actor_rollout_ref.rollout.over_sample_rate": 0.1,
        "+ray_kwargs.ray_init.num_gpus": 2,
        "trainer.use_v1": False,
    }


def test_mappings_are_merged_across_layers(write):
    path = write("worker: {reward: {reward_function_kwargs: {credit: {format: 0.1, numbers: 0.2}}}}")
    argument = "worker.reward.reward_function_kwargs.credit.format=0.3"
    recipe = load(str(path), environ={}, hardware="gpu", arguments=[argument])
    assert recipe.worker.reward.reward_function_kwargs == {"credit": {"format": 0.3, "numbers": 0.2}}


def test_unknown_tasks_and_files(tmp_path):
    assert "did you mean countdown?" in message(load, "countdwn")
    assert "does not exist" in message(load, str(tmp_path / "none.yaml"))
    assert "countdown" in tasks()


def test_recipes_for_another_trainer_are_not_tasks(tmp_path, monkeypatch):
    (tmp_path / "mine.yaml").write_text("# a recipe\nengine: 'mine'  # ours\n")
    (tmp_path / "plain.yaml").write_text("data: {seed: 1}\n")
    monkeypatch.setattr("recipes.config.resolve.CONFIGS", tmp_path)
    assert tasks() == ["plain"]
    assert "is for the trainer 'mine'" in message(load, "mine", environ={})
    assert "did you mean plain?" in message(load, "plan", environ={})


def test_exponents_without_a_point_are_numbers(write):
    recipe = load(str(write("worker: {actor: {optim: {lr: 1e-6}}}")), environ={"KL_COEF": "2E-3"}, hardware="gpu")
    assert recipe.worker.actor.optim.lr == 1e-6
    assert recipe.algorithm.kl_coef == 2e-3


@pytest.mark.parametrize("hardware", ["cpu", "gpu"])
def test_a_resolved_recipe_loads_as_itself(write, hardware):
    arguments = ["trainer.n_gpus_per_node=2", "worker.rollout.agent_num_workers=3", "trainer.use_v1=false"]
    recipe = load("countdown", environ={"LR": "3e-6"}, arguments=arguments, hardware=hardware)
    again = load(str(write(to_yaml(recipe))), environ={})
    assert again.model_dump() == recipe.model_dump()


def test_comments_name_the_layer_of_each_key(resolve):
    text = to_yaml(resolve("actor_rollout_ref.rollout.over_sample_rate=0.1", ROLLOUT_N="4"), layers=True)
    assert "    n: 4  # variable ROLLOUT_N=4\n" in text
    assert "over_sample_rate: 0.1  # argument actor_rollout_ref.rollout.over_sample_rate=0.1\n" in text
    assert "    top_p: 1.0\n" in text
    assert yaml.safe_load(text)["worker"]["rollout"]["n"] == 4


def test_the_critic_is_shown_only_where_there_is_one(resolve):
    assert "  critic:" not in to_yaml(resolve())
    assert "  critic:" in to_yaml(resolve("algorithm.adv_estimator=gae"))


def test_paths_are_absolute_and_listed(resolve, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("")
    recipe = resolve("worker.reward.reward_function=./mine.py:score", "data.train_files=none.parquet")
    found = {item.key: item for item in path_keys(recipe)}
    assert recipe.worker.reward.reward_function == f"{tmp_path}/mine.py:score"
    assert found["worker.reward.reward_function"].path == f"{tmp_path}/mine.py"
    assert found["data.train_files"].path == f"{tmp_path}/none.parquet"
    assert found["data.val_files"].path.endswith("artifacts/data/toy/test.parquet")
    assert found["worker.actor.model.model_path"].on_hub
    assert found["worker.actor.model.model_path"].path == "org/model"
    assert {leaf.path for leaf in leaves(Recipe).values() if leaf.info.path} >= set(found)


def test_a_model_that_is_here_is_a_path(resolve, tmp_path, monkeypatch):
    (tmp_path / "org/model").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert resolve(MODEL_PATH="org/model").worker.actor.model.model_path == f"{tmp_path}/org/model"
    assert resolve(MODEL_PATH="recipes/tasks").worker.actor.model.model_path == str(ROOT / "recipes/tasks")
    assert resolve(MODEL_PATH="a/b/c").worker.actor.model.model_path == f"{tmp_path}/a/b/c"


def test_nothing_heavy_is_imported():
    code = (
        "import sys; from recipes.config import load; from recipes.engines import verl;"
        "[verl.command(load('countdown', environ={}, hardware=kind)) for kind in ('cpu', 'gpu')];"
        "print(sorted({'torch', 'hydra', 'omegaconf', 'transformers', 'verl', 'ray', 'pandas'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("task", ["countdown", "gsm8k", "number_game", "custom"])
@pytest.mark.parametrize("algorithm", [None, "grpo", "dapo"])
def test_no_kl_is_one_variable_whatever_a_file_says_of_it(task, algorithm):
    environ = {"DISABLE_KL": "true"} | ({"ALGORITHM": algorithm} if algorithm else {})
    recipe = load(task, environ=environ, hardware="gpu")
    check(recipe)
    chosen = recipe.algorithm
    assert (chosen.disable_kl, chosen.use_kl_loss, chosen.use_kl_in_reward) == (True, False, None)


def test_a_user_who_wants_kl_and_no_kl_is_asked_which():
    with pytest.raises(RecipeError, match="both true") as raised:
        check(load("custom", environ={"DISABLE_KL": "true"}, arguments=["--use_kl_loss", "true"], hardware="gpu"))
    assert "DISABLE_KL=true" in raised.value.where
    assert "--use_kl_loss true" in raised.value.where
