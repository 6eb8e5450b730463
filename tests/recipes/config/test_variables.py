"""Variables, options and keys are names of one setting; nothing else is read, and nothing is refused for its name."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipes.config import check, load, remarks
from recipes.config.names import canonical
from recipes.config.schema import Recipe, leaves
from recipes.config.variables import (
    CONTROLS,
    VARIABLES,
    argument_settings,
    not_read,
    options,
    read_arguments,
    usual_name,
    variable_names,
    variable_settings,
)
from recipes.errors import RecipeError
from recipes.paths import ROOT
from recipes.pointer_selector.config import VARIABLES as POINTER_SELECTORS

NAMES = sorted(variable_names())
# Set on machines where people train: desktops, containers, clusters, notebooks, CI.
FOREIGN = set(Path(__file__).with_name("ordinary_variables.txt").read_text(encoding="utf-8").split()) - {
    *NAMES,
    "WANDB_API_KEY",
    "WANDB_MODE",
}
OF_OTHER_PROGRAMS = (
    *("MODEL", "GPUS", "STEPS", "RUN_ID", "GPU", "SEEDS", "STEP", "NUM_SAMPLES", "TEST_FILE", "RESUMED", "DATA"),
    *("WARMUP_STEPS", "KL", "KL_BETA", "CLIP_HIGH", "LOG_DIR", "EPOCHS", "BATCH_SIZE", "BETA", "OUTPUT_DIR", "TEMP"),
    *("LRR", "MAX_STEP", "WARMUP"),
)


def countdown(*words, **environ):
    return load("countdown", arguments=words, environ=environ, hardware="gpu")


def test_every_variable_sets_a_key_by_each_of_its_names_and_no_name_means_two_things():
    names = [name for variable in VARIABLES for name in variable.names] + [control.name for control in CONTROLS]
    assert len(names) == len(set(names))
    for variable in VARIABLES:
        assert set(variable.keys) <= set(leaves(Recipe)), variable.name
        assert usual_name(variable) in options()
        for name in variable.names:
            found = variable_settings({name: "7", "PATH": "/usr/bin"})
            assert [(setting.path, setting.value) for setting in found] == [(key, "7") for key in variable.keys]
            assert found[0].source.where == f"variable {name}=7"
        for name in (*variable.options.split(), *map(str.lower, variable.names)):
            for words in (["--" + name, "7"], [f"--{name}=7"], [f"{name}=7"], [f"{name.upper()}=7"]):
                found = argument_settings(words, canonical)
                assert [(setting.path, setting.value) for setting in found] == [(key, "7") for key in variable.keys]
                assert words[0] in found[0].source.where


@pytest.mark.parametrize("value", ["7", "ci-17"])
def test_variables_of_other_programs_change_nothing_and_stop_nothing(value):
    plain = countdown()
    changed = countdown(**dict.fromkeys([*OF_OTHER_PROGRAMS, *FOREIGN], value))
    assert changed.model_dump() == plain.model_dump()
    assert changed.sources == plain.sources


def test_one_note_names_those_that_may_have_been_meant_for_one_that_is_read():
    assert countdown().notes == ()
    assert variable_settings({"MAX_STEPS": "", "LR": "  "}) == []
    (note,) = countdown(KL="0.1", MODEL="a/b", CLIP_HIGH="0.28", STEPS="5", TEST_FILE="x", HOME="/root").notes
    assert note.startswith("set, but not read: KL (did you mean KL_COEF")
    for name, meant in (("MODEL", "MODEL_PATH"), ("CLIP_HIGH", "CLIP_RATIO_HIGH"), ("STEPS", "MAX_STEPS")):
        assert f"{name} (did you mean {meant}" in note
    assert "HOME" not in note
    assert note in remarks(countdown(KL="0.1", MODEL="a/b", CLIP_HIGH="0.28", STEPS="5", TEST_FILE="x"))
    paths = dict.fromkeys(FOREIGN, "/usr/bin")
    assert not_read(paths) == ("set, but not read: LOCAL_RANK (did you mean LORA_RANK?)",), "one likeness by chance"


@given(st.sampled_from([name for name in NAMES if len(name) >= 9]), st.data())
@settings(max_examples=60, deadline=None)
def test_one_wrong_letter_in_a_long_name_is_always_noted(name, data):
    at = data.draw(st.integers(0, len(name) - 1))
    letter = data.draw(st.sampled_from("ABCXYZ"))
    slip = data.draw(st.sampled_from([name[:at] + name[at + 1 :], name[:at] + letter + name[at:]]))
    if slip not in NAMES:
        assert slip in str(not_read({slip: "text"})), f"{slip} for {name}"


def test_wandbs_own_names_count_and_an_option_or_project_name_wins():
    assert countdown(WANDB_PROJECT="team-project").trainer.project_name == "team-project"
    assert countdown("--project_name", "here", WANDB_PROJECT="team-project").trainer.project_name == "here"


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from(["--lr", "1e-6", "--lr=3", "a=b", "--", "-1", "", "--max_steps", "x", "=", "--n-gpus"]))
)
def test_any_words_are_read_or_refused_with_a_fix(words):
    with suppress(RecipeError):
        assert [word for given in read_arguments(words) for word in given.words] == words
    for option, meant in (
        *(("--rolout_n", "--rollout_n"), ("--epoch", "--epochs"), ("--dry_rn", "--dry_run")),
        ("--batch_size", "_batch_size or --"),
    ):
        with pytest.raises(RecipeError) as raised:
            list(read_arguments([option, "1"]))
        assert option in raised.value.what
        assert meant in raised.value.fix


@pytest.mark.parametrize(
    ("words", "environ", "names"),
    [
        ("--rollout_n 8 actor_rollout_ref.rollout.n=5", {}, ["--rollout_n 8", "actor_rollout_ref.rollout.n"]),
        ("", {"WANDB_PROJECT": "team", "PROJECT_NAME": "mine"}, ["WANDB_PROJECT=team", "PROJECT_NAME=mine"]),
        ("", {"LR": "1e-6", "LEARNING_RATE": "1e-5"}, ["LR=1e-6", "LEARNING_RATE=1e-5"]),
        ("", {"ROLLOUT_N": "four"}, ["worker.rollout.n is 'four'", "variable ROLLOUT_N=four", "integer"]),
    ],
)
def test_settings_that_disagree_or_do_not_fit_are_named(words, environ, names):
    with pytest.raises(RecipeError) as raised:
        check(countdown(*words.split(), **environ))
    assert all(name in str(raised.value) for name in names), str(raised.value)
    assert raised.value.fix


READ = re.compile(r"""(?:environ|environment)(?:\[|\.(?:get|pop|setdefault)\()"([A-Z][A-Z0-9_]*)\"""")
OTHERS = (
    *("RECIPES_", "CUDA_", "GOMP_", "HF_", "MLFLOW_", "OMP_", "OPENAI_", "RAY_", "SWANLAB_", "TENSORBOARD_", "VLLM_"),
    *("WANDB_", "XDG_", "HOME", "NETRC", "PATH", "PYTHONPATH", "TORCH_", "TRITON_", "TORCHINDUCTOR_", "VERL_"),
)
"""Beginnings of names that processes of one run, Python, libraries and loggers read."""


def test_every_variable_that_is_read_is_in_a_table_or_another_programs():
    known = variable_names() | variable_names(POINTER_SELECTORS)
    files = [file for folder in ("recipes", "scripts", "reward_functions") for file in (ROOT / folder).rglob("*.py")]
    read = {name: file for file in files for name in READ.findall(file.read_text(encoding="utf-8"))}
    assert not {name: file for name, file in read.items() if name not in known and not name.startswith(OTHERS)}
