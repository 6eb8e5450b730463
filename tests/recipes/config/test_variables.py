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
    argument_settings,
    mistyped,
    options,
    read_arguments,
    usual_name,
    variable_names,
    variable_settings,
)
from recipes.errors import RecipeError

NAMES = sorted(variable_names())
# What is set on machines where people train: desktops, containers, clusters, notebooks, CI.
FOREIGN = Path(__file__).with_name("ordinary_variables.txt").read_text(encoding="utf-8").split()


def countdown(*words, **environ):
    return load("countdown", arguments=words, environ=environ, hardware="gpu")


def test_every_variable_sets_a_key_by_each_of_its_names_and_no_name_means_two_things():
    names = [name for variable in VARIABLES for name in variable.all_names]
    names += [*AMBIGUOUS, *(control.name for control in CONTROLS)]
    assert len(names) == len(set(names))
    for variable in VARIABLES:
        assert set(variable.keys) <= set(leaves(Recipe)), variable.name
        assert usual_name(variable) in options()
        for name in variable.all_names:
            found = variable_settings({name: "7", "PATH": "/usr/bin"})
            assert [(setting.path, setting.value) for setting in found] == [(key, "7") for key in variable.keys]
            assert found[0].source.where.startswith(f"variable {name}=7")
            assert bool(found[0].source.note) == (name in variable.guesses.split())
        for name in (*variable.options.split(), *map(str.lower, variable.names)):
            for words in (["--" + name, "7"], [f"--{name}=7"], [f"{name}=7"], [f"{name.upper()}=7"]):
                found = argument_settings(words, canonical)
                assert [(setting.path, setting.value) for setting in found] == [(key, "7") for key in variable.keys]
                assert words[0] in found[0].source.where


def test_names_that_people_guess_are_taken_with_a_note_unless_a_proper_one_is_set():
    guesses = {"NUM_TRAIN_EPOCHS": "3", "MODEL": "a/b", "N_GPUS": "2", "TEMP": "0.7", "KL_COEFF": "0.5"}
    recipe = countdown(**guesses)
    assert (recipe.trainer.total_epochs, recipe.trainer.n_gpus_per_node, recipe.algorithm.kl_coef) == (3, 2, 0.5)
    assert (recipe.worker.actor.model.model_path, recipe.worker.rollout.temperature) == ("a/b", 0.7)
    for name, text in guesses.items():
        assert any(f"{name}={text} is read as" in remark for remark in remarks(recipe))
    assert countdown(EPOCHS="3", TOTAL_EPOCHS="5").trainer.total_epochs == 5
    with pytest.raises(RecipeError, match="MODEL=a/b, MODEL_NAME=c/d") as raised:
        variable_settings({"MODEL": "a/b", "MODEL_NAME": "c/d"})
    assert raised.value.fix == "set MODEL_PATH instead"


def test_a_name_of_several_meanings_sets_nothing_and_is_answered_with_each():
    plain = countdown()
    assert plain.notes == ()
    for name in AMBIGUOUS:
        recipe = countdown(**{name: "7"})
        assert recipe.model_dump() == plain.model_dump()
        assert [note for note in remarks(recipe) if f"the variable {name}=7 sets nothing here" in note]
        assert countdown(**{name: "7", "IGNORE_VARIABLES": name}).notes == ()
    for words in (["batch_size=8"], ["--batch_size", "8"]):
        with pytest.raises(RecipeError) as raised:
            countdown(*words)
        assert "ROLLOUT_BATCH_SIZE (prompts a step), GLOBAL_BATCH_SIZE" in raised.value.fix


def test_variables_of_other_programs_are_left_alone():
    assert len(FOREIGN) > 150
    assert mistyped(dict.fromkeys(FOREIGN, "1")) == {}
    assert variable_settings({**dict.fromkeys(FOREIGN, "1"), "TEMP": "/tmp", "MAX_STEPS": "", "LR": "  "}) == []


def test_slips_are_caught():
    for slip, meant in (("LRR", "LR"), ("max_steps", "MAX_STEPS"), ("LEARNING_RAT", "LR"), ("EPOCH", "TOTAL_EPOCHS")):
        with pytest.raises(RecipeError, match=f"did you mean {meant}") as raised:
            variable_settings({slip: "3"})
        assert slip in raised.value.fix
        assert mistyped({slip: "3", "IGNORE_VARIABLES": f"OTHER,{slip}"}) == mistyped({slip: ""}) == {}


@given(st.sampled_from([name for name in NAMES if len(name) >= 9]), st.data())
@settings(max_examples=60, deadline=None)
def test_one_wrong_letter_in_a_long_name_is_always_caught(name, data):
    at = data.draw(st.integers(0, len(name) - 1))
    letter = data.draw(st.sampled_from("ABCXYZ"))
    slip = data.draw(st.sampled_from([name[:at] + name[at + 1 :], name[:at] + letter + name[at:]]))
    if slip not in NAMES and slip not in AMBIGUOUS:
        assert slip in mistyped({slip: "1"}), f"{slip} for {name}"


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from(["--lr", "1e-6", "--lr=3", "a=b", "--", "-1", "", "--max_steps", "x", "=", "--n-gpus"]))
)
def test_any_words_are_read_or_refused_with_a_fix(words):
    with suppress(RecipeError):
        assert [word for given in read_arguments(words) for word in given.words] == words
    for option, meant in (("--rolout_n", "--rollout_n"), ("--epoch", "--epochs"), ("--dry_rn", "--dry_run")):
        with pytest.raises(RecipeError, match=f"unknown option {option}\n.*\n.*did you mean {meant}"):
            list(read_arguments([option, "1"]))


@pytest.mark.parametrize(
    ("words", "environ", "names"),
    [
        ("--rollout_n 8 actor_rollout_ref.rollout.n=5", {}, ["--rollout_n 8", "actor_rollout_ref.rollout.n"]),
        ("--use_kl_loss 1 --kl_coef 0.01 actor_rollout_ref.actor.kl_loss_coef=0.02", {}, ["kl_coef", "0.02"]),
        ("", {"LR": "1e-6", "LEARNING_RATE": "1e-5"}, ["LR=1e-6", "LEARNING_RATE=1e-5"]),
        ("", {"ROLLOUT_N": "four"}, ["worker.rollout.n is 'four'", "variable ROLLOUT_N=four", "(whole number)"]),
    ],
)
def test_settings_that_disagree_or_do_not_fit_are_named(words, environ, names):
    with pytest.raises(RecipeError) as raised:
        check(countdown(*words.split(), **environ))
    assert all(name in str(raised.value) for name in names), str(raised.value)
    assert raised.value.fix
