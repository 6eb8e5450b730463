"""Options, variables and keys are three names of one setting; what is mistyped is answered with the nearest name."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipes.config import check, load
from recipes.config.schema import Recipe, leaves
from recipes.config.variables import VARIABLES, options, read_arguments, read_words, usual_name
from recipes.engines import verl
from recipes.errors import RecipeError


def custom(*words, hardware="gpu", **environ):
    recipe = load("custom", arguments=words, environ=environ, hardware=hardware)
    check(recipe)
    return recipe


def test_no_option_means_two_things_and_each_variable_has_one():
    names = [name for variable in VARIABLES for name in (*variable.options, *(n.lower() for n in variable.names))]
    assert len(names) == len(set(names))
    assert {usual_name(variable) for variable in VARIABLES} <= set(options())


@pytest.mark.parametrize("name", sorted(options()))
@pytest.mark.parametrize("words", [["--{}", "7"], ["--{}=7"]])
def test_every_option_sets_the_key_of_its_variable(name, words):
    found = read_arguments([word.format(name) for word in words])
    variable = options()[name]
    assert [(setting.path, setting.value) for setting in found] == [
        (key, "7") for key in (variable.key, *variable.also)
    ]
    assert found[0].source.by_user
    assert f"--{name}" in found[0].source.where


def test_the_defaults_are_those_that_the_kit_promises():
    recipe = custom()
    promised = {
        "worker.rollout.n": 5,
        "algorithm.norm_adv_by_std": True,
        "algorithm.use_kl_loss": True,
        "algorithm.kl_loss_type": "low_var_kl",
        "data.rollout_batch_size": 256,
        "worker.actor.optim.lr": 1e-6,
        "trainer.total_epochs": 15,
        "data.max_response_length": 1024,
    }
    assert {key: recipe.value(key) for key in promised} == promised
    assert verl.translate(recipe)["actor_rollout_ref.actor.kl_loss_coef"] == 0.001


@pytest.mark.parametrize("hardware", ["cpu", "gpu"])
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", {}),
        (
            "--model Qwen/Qwen2.5-7B --rollout_n 8 --epochs 20 --data my.json",
            {"actor_rollout_ref.rollout.n": 8, "trainer.total_epochs": 20, "data.train_batch_size": 256},
        ),
        (
            "--reward_func ./my_reward.py --kl_coef 0.01 --lr 5e-7 --n_gpus 8",
            {
                "actor_rollout_ref.actor.kl_loss_coef": 0.01,
                "actor_rollout_ref.actor.optim.lr": 5e-7,
                "trainer.n_gpus_per_node": 8,
            },
        ),
        (
            "actor_rollout_ref.model.lora_rank=8 actor_rollout_ref.model.lora_alpha=16",
            {"actor_rollout_ref.model.lora_rank": 8, "actor_rollout_ref.model.lora_alpha": 16},
        ),
        (
            "--n_gpus 8 actor_rollout_ref.rollout.tensor_model_parallel_size=4",
            {"trainer.n_gpus_per_node": 8, "actor_rollout_ref.rollout.tensor_model_parallel_size": 4},
        ),
        (
            "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum-norm",
            {"actor_rollout_ref.actor.loss_agg_mode": "seq-mean-token-sum-norm"},
        ),
    ],
)
def test_the_six_commands_reach_verl(words, expected, hardware):
    keys = verl.translate(custom(*words.split(), hardware=hardware))
    assert {name: keys[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("--rolout_n 8", "--rollout_n"),
        ("--epoch 3", "--epochs"),
        ("--learning_rte 1", "--learning_rate"),
        ("--kl_coeff 1", "--kl_coef"),
        ("--dry_rn 1", "--dry_run"),
        ("--batch_size 8", "batch_size"),
        ("--n_gpu 8", "--n_gpus"),
        ("--reward ./a.py", "--reward_func"),
        ("actor_rollout_ref.actor.loss_agg_mod=x", "actor_rollout_ref.actor.loss_agg_mode"),
        ("actor_rollout_ref.rollout.tensor_parallel=4", "actor_rollout_ref.rollout."),
        ("data.train_batchsize=64", "data.train_batch_size"),
        ("algorithm.norm_adv_by_std_in_grp=false", "algorithm.norm_adv_by_std"),
        ("trainer.total_training_step=3", "trainer.total_training_steps"),
        ("ray_kwargs.ray_init.num_cpu=2", "ray_kwargs.ray_init.num_cpus"),
    ],
)
def test_slips_are_answered_with_the_name_that_was_meant(words, meant):
    with pytest.raises(RecipeError) as caught:
        custom(*words.split())
    assert "did you mean" in caught.value.fix
    assert meant in caught.value.fix


@pytest.mark.parametrize("words", [["--lr"], ["--lr", "--epochs", "3"], ["lr"], ["=3"], ["--=3"]])
def test_what_is_neither_option_nor_key_is_refused(words):
    with pytest.raises(RecipeError) as caught:
        custom(*words)
    assert caught.value.fix


@pytest.mark.parametrize(
    ("words", "environ", "names"),
    [
        ("--rollout_n 8 actor_rollout_ref.rollout.n=5", {}, ["--rollout_n 8", "actor_rollout_ref.rollout.n"]),
        ("actor_rollout_ref.rollout.n=5", {"ROLLOUT_N": "8"}, ["ROLLOUT_N=8", "actor_rollout_ref.rollout.n"]),
        ("--lr 1e-6 --learning_rate 1e-5", {}, ["--lr 1e-6", "--learning_rate 1e-5"]),
        ("--train_batch_size 64 data.train_batch_size=32", {}, ["--train_batch_size 64", "data.train_batch_size"]),
        ("--kl_coef 0.01 actor_rollout_ref.actor.kl_loss_coef=0.02", {}, ["kl_coef", "0.02"]),
        ("--kl_coef 0.01", {"KL_LOSS_COEF": "0.02"}, ["--kl_coef 0.01", "KL_LOSS_COEF=0.02"]),
        ("", {"LR": "1e-6", "LEARNING_RATE": "1e-5"}, ["LR=1e-6", "LEARNING_RATE=1e-5"]),
        ("", {"ROLLOUT_BATCH_SIZE": "64", "TRAIN_BATCH_SIZE": "32"}, ["ROLLOUT_BATCH_SIZE", "TRAIN_BATCH_SIZE"]),
    ],
)
def test_two_names_of_one_key_may_not_disagree_and_both_are_named(words, environ, names):
    with pytest.raises(RecipeError) as caught:
        verl.translate(custom(*words.split(), **environ))
    assert all(name in str(caught.value) for name in names)


def test_two_names_of_one_key_may_agree():
    assert custom("--rollout_n", "8", "actor_rollout_ref.rollout.n=8", "worker.rollout.n=8").worker.rollout.n == 8


def test_an_option_wins_over_a_variable():
    assert custom("--rollout_n", "8", ROLLOUT_N="6").worker.rollout.n == 8


def test_a_name_of_both_trees_is_the_recipes_key_and_feeds_verls_key_of_that_name():
    """data, algorithm and trainer are roots of both trees: what has one name in both must mean one thing."""
    from recipes.config import verl_names

    both = [path for path in leaves(Recipe) if path in verl_names.defaults()]
    assert len(both) > 20
    assert [path for path in both if path not in leaves(Recipe)[path].info.verl] == []


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from(["--lr", "1e-6", "--lr=3", "a=b", "--", "-1", "", "--max_steps", "x", "=", "--n-gpus"]))
)
def test_any_words_are_read_or_refused_in_words(words):
    with suppress(RecipeError):
        assert [word for given in read_words(words) for word in given.words] == words


def test_the_tiny_model_gives_way_to_a_model_or_data_of_the_users():
    assert custom(hardware="cpu").embedded_on
    assert custom("--lr", "1e-5", hardware="cpu").embedded_on
    for words in (["--model", "a/b"], ["--data", "a.json"], ["actor_rollout_ref.model.path=a/b"]):
        recipe = custom(*words, hardware="cpu")
        assert not recipe.embedded_on
        assert recipe.data.rollout_batch_size == 256
    assert not custom(hardware="cpu", MODEL_PATH="a/b").embedded_on
    assert custom("--data", "a.json", "--embedded", "1", hardware="cpu").embedded_on


@pytest.mark.parametrize(("n", "batch", "gpus", "update", "experience"), [
    (5, 256, 8, 4, 8), (3, 10, 1, 3, 6), (5, 10, 2, 1, 5), (7, 1, 1, 1, 7), (8, 256, 6, 1, 1),
])  # fmt: skip
def test_micro_batches_divide_whatever_the_batch(n, batch, gpus, update, experience):
    words = f"--rollout_n {n} --train_batch_size {batch} --n_gpus {gpus}".split()
    words.append("worker.actor.dynamic_batching=false")
    actor = load("custom", arguments=words, environ={}, hardware="gpu").worker.actor
    assert (actor.global_batch_size, actor.micro_batch_size_per_device_for_update) == (batch, update)
    assert actor.micro_batch_size_per_device_for_experience == experience


@pytest.mark.parametrize(("engine", "sizes"), [("verl", (4, 8)), ("easyr1", (3, 7))])
def test_micro_batches_that_are_filled_by_tokens_divide_nothing_but_in_easyr1(engine, sizes):
    words = (
        f"--rollout_n 7 --train_batch_size 9 --n_gpus 3 --engine {engine} worker.actor.dynamic_batching=true".split()
    )
    recipe = load("custom", arguments=words, environ={}, hardware="gpu")
    check(recipe)
    actor = recipe.worker.actor
    found = actor.micro_batch_size_per_device_for_update, actor.micro_batch_size_per_device_for_experience
    assert found == sizes


def test_checkpoints_follow_the_experiment_and_artifacts(tmp_path, monkeypatch):
    assert custom("--experiment_name", "mine").trainer.save_checkpoint_path.endswith("outputs/checkpoints/mine")
    monkeypatch.setenv("ARTIFACTS_DIR", str(tmp_path))
    assert custom().trainer.save_checkpoint_path == str(tmp_path / "outputs" / "checkpoints" / "custom")
