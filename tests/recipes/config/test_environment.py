"""The one table of variables: every name leads to a key, slips are caught, and other programs' variables are not."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipes.config.schema import Recipe, leaves
from recipes.config.variables import (
    CONTROLS,
    VARIABLES,
    Variable,
    dry_run,
    is_on,
    mistyped,
    read_settings,
    variable_names,
)
from recipes.errors import RecipeError

NAMES = sorted(variable_names())

# What is set on machines where people train: desktops, containers, clusters, notebooks, CI.
ORDINARY = Path(__file__).with_name("ordinary_variables.txt").read_text(encoding="utf-8").split()


def test_every_variable_sets_a_key_of_the_schema():
    for variable in VARIABLES:
        for key in (variable.key, *variable.also):
            assert key in leaves(Recipe), f"{variable.name} sets {key}"


def test_no_name_means_two_things():
    names = [name for variable in VARIABLES for name in variable.names] + [control.name for control in CONTROLS]
    assert len(names) == len(set(names)) == len(NAMES)
    keys = [variable.key for variable in VARIABLES]
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize("variable", VARIABLES, ids=lambda variable: variable.name)
def test_each_name_of_a_variable_is_read(variable):
    for name in variable.names:
        found = read_settings({name: "7", "PATH": "/usr/bin"})
        assert [(setting.path, setting.value) for setting in found] == [
            (key, "7") for key in (variable.key, *variable.also)
        ]
        assert found[0].source.where == f"variable {name}=7"


def test_empty_variables_set_nothing():
    assert read_settings({"MAX_STEPS": "", "LR": "  "}) == []


def test_names_for_one_key_may_agree_but_not_disagree():
    assert len(read_settings({"ROLLOUT_BATCH_SIZE": "8", "TRAIN_BATCH_SIZE": "8"})) == 1
    with pytest.raises(RecipeError, match="ROLLOUT_BATCH_SIZE=8, TRAIN_BATCH_SIZE=4") as raised:
        read_settings({"ROLLOUT_BATCH_SIZE": "8", "TRAIN_BATCH_SIZE": "4"})
    assert raised.value.where == "both set data.rollout_batch_size"


def test_ordinary_variables_are_left_alone():
    assert len(ORDINARY) > 150
    assert mistyped(dict.fromkeys(ORDINARY, "1")) == {}


@pytest.mark.parametrize(
    ("slip", "meant"),
    [
        ("ROLLOUT_BATCHSIZE", "ROLLOUT_BATCH_SIZE"),
        ("MAX_STEP", "MAX_STEPS"),
        ("MAXSTEPS", "MAX_STEPS"),
        ("max_steps", "MAX_STEPS"),
        ("LEARNING_RAT", "LEARNING_RATE"),
        ("TENSOR_PARALEL_SIZE", "TENSOR_PARALLEL_SIZE"),
        ("TEMPERATUER", "TEMPERATURE"),
        ("KL_COEFF", "KL_COEF"),
        ("N_GPU_PER_NODE", "N_GPUS_PER_NODE"),
        ("EXPERIMENT_NAMES", "EXPERIMENT_NAME"),
        ("BATCH_SIZE", "ROLLOUT_BATCH_SIZE"),
        ("RESPONSE_LENGTH", "MAX_RESPONSE_LENGTH"),
        ("HARDWAER", "HARDWARE"),
    ],
)
def test_slips_are_caught(slip, meant):
    assert mistyped({slip: "3"}) == {slip: meant}
    with pytest.raises(RecipeError, match=f"did you mean {meant}") as raised:
        read_settings({slip: "3"})
    assert slip in raised.value.fix
    assert mistyped({slip: "3", "IGNORE_VARIABLES": f"OTHER,{slip}"}) == {}
    assert mistyped({slip: ""}) == {}


@given(st.sampled_from([name for name in NAMES if len(name.replace("_", "")) >= 9]), st.data())
@settings(max_examples=150, deadline=None)
def test_one_wrong_letter_in_a_long_name_is_always_caught(name, data):
    at = data.draw(st.integers(0, len(name) - 1))
    letter = data.draw(st.sampled_from("ABCXYZ"))
    slip = data.draw(st.sampled_from([name[:at] + name[at + 1 :], name[:at] + letter + name[at:]]))
    if slip in NAMES or slip.startswith("_"):
        return
    assert slip in mistyped({slip: "1"}), f"{slip} for {name}"


def test_another_table_has_its_own_names():
    table = (Variable("RCE_EPOCHS", "data.seed"),)
    assert read_settings({"RCE_EPOCHS": "3"}, table)[0].path == "data.seed"
    with pytest.raises(RecipeError, match="did you mean RCE_EPOCHS"):
        read_settings({"RCE_EPOCH": "3"}, table)


@pytest.mark.parametrize(
    ("text", "on"), [("1", True), ("true", True), ("YES", True), ("0", False), ("off", False), ("", None)]
)
def test_switches(text, on):
    assert is_on({"EMBEDDED": text}, "EMBEDDED") is on
    assert dry_run({"DRY_RUN": text}) is bool(on)


def test_a_switch_that_is_neither_is_named():
    with pytest.raises(RecipeError, match="DRY_RUN=perhaps is neither on nor off"):
        dry_run({"DRY_RUN": "perhaps"})
