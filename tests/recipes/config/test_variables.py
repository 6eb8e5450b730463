"""Variables, options and keys are names of one setting; guesses are taken, slips answered, strangers left alone."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipes.config import check, load, remarks
from recipes.config.names import canonical
from recipes.config.schema import Recipe, leaves
from recipes.config.variables import (
    AMBIGUOUS,
    CONTROLS,
    VARIABLES,
    Variable,
    argument_settings,
    dry_run,
    is_on,
    mistyped,
    options,
    read_arguments,
    usual_name,
    variable_names,
    variable_settings,
)
from recipes.engines import verl
from recipes.errors import RecipeError

NAMES = sorted(variable_names())
# What is set on machines where people train: desktops, containers, clusters, notebooks, CI.
FOREIGN = Path(__file__).with_name("ordinary_variables.txt").read_text(encoding="utf-8").split()


def custom(*words, hardware="gpu", **environ):
    recipe = load("custom", arguments=words, environ=environ, hardware=hardware)
    check(recipe)
    return recipe


def test_every_variable_sets_a_key_and_no_name_means_two_things():
    for variable in VARIABLES:
        assert {variable.key, *variable.also} <= set(leaves(Recipe)), variable.name
    names = [name for variable in VARIABLES for name in (*variable.names, *variable.guesses)]
    names += [*AMBIGUOUS, *(control.name for control in CONTROLS)]
    assert len(names) == len(set(names))
    words = [name for variable in VARIABLES for name in (*variable.options, *(n.lower() for n in variable.names))]
    assert len(words) == len(set(words))
    assert {usual_name(variable) for variable in VARIABLES} <= set(options())


@pytest.mark.parametrize("variable", VARIABLES, ids=lambda variable: variable.name)
def test_each_name_of_a_variable_is_read_from_the_environment_and_as_an_option(variable):
    keys = [variable.key, *variable.also]
    for name in (*variable.names, *variable.guesses):
        settings = variable_settings({name: "7", "PATH": "/usr/bin"})
        assert [(setting.path, setting.value) for setting in settings] == [(key, "7") for key in keys]
        assert settings[0].source.where.startswith(f"variable {name}=7")
        assert bool(settings[0].source.note) == (name in variable.guesses)
    for name in (*variable.options, *(name.lower() for name in variable.names)):
        for words in (["--" + name, "7"], [f"--{name}=7"]):
            settings = argument_settings(words, canonical)
            assert [(setting.path, setting.value) for setting in settings] == [(key, "7") for key in keys]
            assert f"--{name}" in settings[0].source.where


GUESSES = {
    "EPOCHS": ("3", "trainer.total_epochs", 3),
    "NUM_TRAIN_EPOCHS": ("3", "trainer.total_epochs", 3),
    "MODEL": ("a/b", "worker.actor.model.model_path", "a/b"),
    "MODEL_NAME": ("a/b", "worker.actor.model.model_path", "a/b"),
    "EXP_NAME": ("foo", "trainer.experiment_name", "foo"),
    "RUN_NAME": ("foo", "trainer.experiment_name", "foo"),
    "N_GPUS": ("2", "trainer.n_gpus_per_node", 2),
    "NUM_GPUS": ("2", "trainer.n_gpus_per_node", 2),
    "TP": ("2", "worker.rollout.tensor_parallel_size", 2),
    "STEPS": ("9", "trainer.max_steps", 9),
    "NUM_GENERATIONS": ("4", "worker.rollout.n", 4),
    "GROUP_SIZE": ("4", "worker.rollout.n", 4),
    "TEMP": ("0.7", "worker.rollout.temperature", 0.7),
    "MAX_NEW_TOKENS": ("99", "data.max_response_length", 99),
    "KL_COEFF": ("0.5", "algorithm.kl_coef", 0.5),
    "MINI_BATCH_SIZE": ("64", "worker.actor.global_batch_size", 64),
    "REWARD_FN": ("/r.py", "worker.reward.reward_function", "/r.py"),
}


@pytest.mark.parametrize("name", GUESSES)
def test_names_that_people_guess_are_taken_and_said(name):
    text, key, value = GUESSES[name]
    recipe = load("countdown", environ={name: text}, hardware="gpu")
    assert recipe.value(key) == value
    assert any(f"{name}={text} is read as" in remark for remark in remarks(recipe))
    assert load("countdown", environ={}, hardware="gpu").notes == ()


def test_a_proper_name_wins_over_a_guess_and_two_guesses_are_asked_about():
    assert load("countdown", environ={"EPOCHS": "3", "TOTAL_EPOCHS": "5"}, hardware="gpu").trainer.total_epochs == 5
    with pytest.raises(RecipeError, match="MODEL=a/b, MODEL_NAME=c/d") as raised:
        variable_settings({"MODEL": "a/b", "MODEL_NAME": "c/d"})
    assert raised.value.fix == "set MODEL_PATH instead"


@pytest.mark.parametrize(
    ("word", "keys"),
    [
        ("learning_rate=1e-5", {"worker.actor.optim.lr": 1e-5}),
        ("LR=1e-5", {"worker.actor.optim.lr": 1e-5}),
        ("seed=7", {"data.seed": 7, "worker.rollout.seed": 7}),
        ("rollout_n=3", {"worker.rollout.n": 3}),
    ],
)
def test_a_variables_name_without_dots_is_an_argument(word, keys):
    recipe = load("countdown", arguments=[word], environ={}, hardware="gpu")
    assert {key: recipe.value(key) for key in keys} == keys
    assert all(recipe.source_of(key).where == f"argument {word}" for key in keys)


@pytest.mark.parametrize("words", [["batch_size=8"], ["--batch_size", "8"]])
def test_a_name_of_several_keys_is_answered_with_each(words):
    with pytest.raises(RecipeError) as raised:
        load("countdown", arguments=words, environ={}, hardware="gpu")
    assert "ROLLOUT_BATCH_SIZE (prompts a step), GLOBAL_BATCH_SIZE" in raised.value.fix


@pytest.mark.parametrize("name", AMBIGUOUS)
def test_a_name_of_several_meanings_sets_nothing_and_says_so(name):
    recipe = load("countdown", environ={name: "7"}, hardware="gpu")
    assert recipe.model_dump() == load("countdown", environ={}, hardware="gpu").model_dump()
    assert [note for note in remarks(recipe) if f"the variable {name}=7 sets nothing here" in note]
    assert load("countdown", environ={name: "7", "IGNORE_VARIABLES": name}, hardware="gpu").notes == ()


def test_variables_of_other_programs_are_left_alone():
    assert len(FOREIGN) > 150
    assert mistyped(dict.fromkeys(FOREIGN, "1")) == {}
    assert variable_settings(dict.fromkeys(FOREIGN, "1")) == []
    assert variable_settings({"TEMP": "/tmp", "MAX_STEPS": "", "LR": "  "}) == []


@pytest.mark.parametrize(
    ("slip", "meant"),
    [
        ("LRR", "LR"),
        ("ROLLOUT_BATCHSIZE", "ROLLOUT_BATCH_SIZE"),
        ("MAX_STEP", "MAX_STEPS"),
        ("MAXSTEPS", "MAX_STEPS"),
        ("max_steps", "MAX_STEPS"),
        ("LEARNING_RAT", "LR"),
        ("TENSOR_PARALEL_SIZE", "TENSOR_PARALLEL_SIZE"),
        ("TEMPERATUER", "TEMPERATURE"),
        ("N_GPU_PER_NODE", "GPUS_PER_NODE"),
        ("EXPERIMENT_NAMES", "EXPERIMENT_NAME"),
        ("EPOCH", "TOTAL_EPOCHS"),
        ("ROLOUT_N", "ROLLOUT_N"),
        ("HARDWAER", "HARDWARE"),
    ],
)
def test_slips_are_caught(slip, meant):
    assert mistyped({slip: "3"}) == {slip: meant}
    with pytest.raises(RecipeError, match=f"did you mean {meant}") as raised:
        variable_settings({slip: "3"})
    assert slip in raised.value.fix
    assert mistyped({slip: "3", "IGNORE_VARIABLES": f"OTHER,{slip}"}) == {}
    assert mistyped({slip: ""}) == {}


@given(st.sampled_from([name for name in NAMES if len(name) >= 9]), st.data())
@settings(max_examples=100, deadline=None)
def test_one_wrong_letter_in_a_long_name_is_always_caught(name, data):
    at = data.draw(st.integers(0, len(name) - 1))
    letter = data.draw(st.sampled_from("ABCXYZ"))
    slip = data.draw(st.sampled_from([name[:at] + name[at + 1 :], name[:at] + letter + name[at:]]))
    if slip not in NAMES and slip not in AMBIGUOUS:
        assert slip in mistyped({slip: "1"}), f"{slip} for {name}"


def test_another_table_has_its_own_names():
    table = (Variable("RCE_EPOCHS", "data.seed"),)
    assert variable_settings({"RCE_EPOCHS": "3"}, table)[0].path == "data.seed"
    with pytest.raises(RecipeError, match="did you mean RCE_EPOCHS"):
        variable_settings({"RCE_EPOCH": "3"}, table)


@pytest.mark.parametrize(
    ("text", "on"), [("1", True), ("true", True), ("YES", True), ("0", False), ("off", False), ("", None)]
)
def test_switches(text, on):
    assert is_on({"EMBEDDED": text}, "EMBEDDED") is on
    assert dry_run({"DRY_RUN": text}) is bool(on)
    with pytest.raises(RecipeError, match="DRY_RUN=perhaps is neither on nor off"):
        dry_run({"DRY_RUN": "perhaps"})


@pytest.mark.parametrize("hardware", ["cpu", "gpu"])
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", {"actor_rollout_ref.rollout.n": 5, "actor_rollout_ref.actor.kl_loss_coef": 0.001}),
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
            "actor.loss_agg_mode=seq-mean-token-sum-norm",
            {"actor_rollout_ref.actor.loss_agg_mode": "seq-mean-token-sum-norm"},
        ),
    ],
)
def test_the_kits_commands_reach_verl(words, expected, hardware):
    keys = verl.translate(custom(*words.split(), hardware=hardware))
    if not words or hardware == "gpu" or "--data" in words:
        assert {name: keys[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("--rolout_n 8", "--rollout_n"),
        ("--epoch 3", "--epochs"),
        ("--learning_rte 1", "--learning_rate"),
        ("--dry_rn 1", "--dry_run"),
        ("--reward ./a.py", "--reward_f"),
    ],
)
def test_mistyped_options_are_answered(words, meant):
    with pytest.raises(RecipeError) as raised:
        custom(*words.split())
    assert "did you mean" in raised.value.fix
    assert meant in raised.value.fix


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from(["--lr", "1e-6", "--lr=3", "a=b", "--", "-1", "", "--max_steps", "x", "=", "--n-gpus"]))
)
def test_any_words_are_read_or_refused_with_a_fix(words):
    with suppress(RecipeError):
        assert [word for given in read_arguments(words) for word in given.words] == words
    for wrong in (["--lr"], ["--lr", "--epochs", "3"], ["lr"], ["=3"], ["--=3"]):
        with pytest.raises(RecipeError) as raised:
            list(read_arguments(wrong))
        assert raised.value.fix


@pytest.mark.parametrize(
    ("words", "environ", "names"),
    [
        ("--rollout_n 8 actor_rollout_ref.rollout.n=5", {}, ["--rollout_n 8", "actor_rollout_ref.rollout.n"]),
        ("actor_rollout_ref.rollout.n=5", {"ROLLOUT_N": "8"}, ["ROLLOUT_N=8", "actor_rollout_ref.rollout.n"]),
        ("rollout.n=5", {"ROLLOUT_N": "8"}, ["ROLLOUT_N=8", "rollout.n"]),
        ("--lr 1e-6 --learning_rate 1e-5", {}, ["--lr 1e-6", "--learning_rate 1e-5"]),
        ("--train_batch_size 64 data.train_batch_size=32", {}, ["--train_batch_size 64", "data.train_batch_size"]),
        ("--kl_coef 0.01 actor_rollout_ref.actor.kl_loss_coef=0.02", {}, ["kl_coef", "0.02"]),
        ("--kl_coef 0.01", {"KL_LOSS_COEF": "0.02"}, ["--kl_coef 0.01", "KL_LOSS_COEF=0.02"]),
        ("", {"LR": "1e-6", "LEARNING_RATE": "1e-5"}, ["LR=1e-6", "LEARNING_RATE=1e-5"]),
        ("", {"ROLLOUT_N": "four"}, ["worker.rollout.n is 'four'", "variable ROLLOUT_N=four", "(whole number)"]),
    ],
)
def test_settings_that_disagree_or_do_not_fit_are_named(words, environ, names):
    with pytest.raises(RecipeError) as raised:
        verl.translate(custom(*words.split(), **environ))
    assert all(name in str(raised.value) for name in names), str(raised.value)
    assert raised.value.fix


def test_names_of_one_key_may_agree_and_an_option_wins_over_a_variable():
    assert custom("--rollout_n", "8", "actor_rollout_ref.rollout.n=8", "worker.rollout.n=8").worker.rollout.n == 8
    assert custom("--rollout_n", "8", ROLLOUT_N="6").worker.rollout.n == 8
    assert custom("worker.rollout.n=8", ROLLOUT_N="6").worker.rollout.n == 8
