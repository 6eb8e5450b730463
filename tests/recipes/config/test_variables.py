"""Variables, options and keys are names of one setting; nothing else is read, and nothing is refused for its name."""

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipes import preflight
from recipes.config import check, load
from recipes.config.names import canonical
from recipes.config.variables import VALUES, argument_settings, not_read, read_arguments, table, variable_names
from recipes.errors import RecipeError
from recipes.pointer_selector.config import PointerRecipe
from tests.mistakes import mistake

NAMES = sorted(variable_names())
# Set on machines where people train: desktops, containers, clusters, notebooks, CI.
ORDINARY = Path(__file__).with_name("ordinary_variables.txt").read_text(encoding="utf-8").split()
FOREIGN = {*ORDINARY} - {*NAMES, "WANDB_API_KEY", "WANDB_MODE"}
OF_OTHER_PROGRAMS = (
    *("MODEL", "GPUS", "STEPS", "RUN_ID", "GPU", "SEEDS", "STEP", "NUM_SAMPLES", "TEST_FILE", "RESUMED", "DATA"),
    *("WARMUP_STEPS", "KL", "KL_BETA", "CLIP_HIGH", "LOG_DIR", "EPOCHS", "BATCH_SIZE", "BETA", "OUTPUT_DIR", "TEMP"),
    *("LRR", "MAX_STEP", "WARMUP"),
)


def countdown(*words, **environ):
    return load("countdown", arguments=words, environ=environ, hardware="gpu")


def test_a_variable_is_an_option_by_each_of_its_names():
    for words in (["--epochs", "7"], ["--total_epochs=7"], ["total_epochs=7"], ["TOTAL_EPOCHS=7"]):
        (found,) = argument_settings(words, canonical)
        assert (found.path, found.value) == ("trainer.total_epochs", "7")
        assert words[0] in found.source.where
    recipe = countdown(SEED="7", TEST_FILES="a.parquet", MAX_STEPS="", LR="  ")
    assert recipe.data.seed == recipe.worker.rollout.seed == 7
    assert recipe.data.val_files.endswith("a.parquet")
    assert recipe.trainer.max_steps is None


@pytest.mark.parametrize("value", ["7", "ci-17"])
def test_variables_of_other_programs_change_nothing_and_stop_nothing(value):
    plain = countdown()
    changed = countdown(**dict.fromkeys([*OF_OTHER_PROGRAMS, *FOREIGN], value))
    assert changed.model_dump() == plain.model_dump()
    assert changed.sources == plain.sources


def test_one_note_names_those_that_may_have_been_meant_for_one_that_is_read():
    assert countdown().resolution.notes == ()
    misses = {"KL": "KL_COEF", "CLIP_HIGH": "CLIP_RATIO_HIGH", "MAX_STEP": "MAX_STEPS"}
    misses |= {"LRR": "LR", "WARMUP": "LR_WARMUP", "seed": "SEED?", "EXP_NAME": "EXPERIMENT_NAME", "TP_SIZE": "TENSOR"}
    misses |= {
        "NUM_EPOCHS": "TOTAL_EPOCHS",
        "NUM_GPUS": "GPUS_PER_NODE",
        "GROUP_SIZE": "ROLLOUT_N",
        "TOOL_FILE": "TOOLS",
    }
    misses |= dict.fromkeys(("BASE_MODEL", "MODEL_NAME"), "MODEL_PATH") | {"MAX_NEW_TOKENS": "MAX_RESPONSE_LENGTH"}
    misses |= dict.fromkeys(("TRAIN_DATA", "DATA_PATH"), "TRAIN_FILES")
    (note,) = countdown(
        MODEL="a/b", DATA="x", TEST_FILE="x", HOME="/root", **dict.fromkeys(misses, "3")
    ).resolution.notes
    for name, meant in {"MODEL": "MODEL_PATH", "DATA": "TRAIN_FILES", **misses}.items():
        assert f"{name} (did you mean {meant}" in note
    assert "HOME" not in note
    (note,) = countdown(KL_BETA="0.3").resolution.notes
    assert "KL_BETA (of examples/pointer_selector" in note
    ours = {name for names in table("other_names.yaml")["launchers"].values() for name in names}
    assert ours == variable_names(PointerRecipe) - variable_names()
    paths = dict.fromkeys(FOREIGN, "/usr/bin")
    assert not_read(paths) == ("set, but not read: LOCAL_RANK (did you mean LORA_RANK?)",), "one likeness by chance"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(["--lr", "1e-6", "--lr=3", "a=b", "--", "-1", "", "--max_steps", "=", "--n-gpus"])))
def test_any_words_are_read_or_refused_with_a_fix(words):
    with suppress(RecipeError):
        assert [word for given in read_arguments(words) for word in given.words] == words


MISTYPED = {"--rolout_n": "--rollout_n", "--epoch": "--epochs", "--dry_rn": "--dry_run", "--batch_size": "_batch_size"}
MISTYPED |= {"--kl": "--kl_coef", "--lora": "--lora_rank", "--train_data": "--data", "--test_data": "--help"}
MISTYPED |= {
    "--num-generations": "--rollout_n",
    "--beta": "--kl_coef",
    "--max_completion_length": "--max_response_length",
}


@pytest.mark.parametrize("option", MISTYPED)
def test_a_mistyped_option_is_answered_with_the_one_that_is_meant(option):
    error = mistake(lambda: list(read_arguments([option, "1"])))
    assert option in error.what
    assert MISTYPED[option] in error.fix


@pytest.mark.parametrize(
    ("words", "environ", "names"),
    [
        ("--rollout_n 8 actor_rollout_ref.rollout.n=5", {}, ["--rollout_n 8", "actor_rollout_ref.rollout.n"]),
        ("--lr 1e-6 --lr=1e-5", {}, ["--lr 1e-6", "--lr=1e-5"]),
        ("hardware=cpu --hardware gpu", {}, ["hardware=cpu", "--hardware gpu"]),
        ("--gpus 1x24 --gpus 1x80", {}, ["--gpus 1x24", "--gpus 1x80"]),
        ("--gpus 8x80 --hardware cpu", {}, ["--gpus 8x80", "--hardware cpu"]),
        ("", {"WANDB_PROJECT": "team", "PROJECT_NAME": "mine"}, ["WANDB_PROJECT=team", "PROJECT_NAME=mine"]),
        ("", {"LR": "1e-6", "LEARNING_RATE": "1e-5"}, ["LR=1e-6", "LEARNING_RATE=1e-5"]),
        ("", {"LOGGER": "console wandb"}, ["variable LOGGER=console wandb", "by commas: console,wandb"]),
        ("", {"REWARD_WEIGHTS": "1 0.2"}, ["by commas: 1,0.2"]),
        ("", {"ROLLOUT_N": "four"}, ["worker.rollout.n is 'four'", "variable ROLLOUT_N=four", "integer"]),
    ],
)
def test_settings_that_disagree_or_do_not_fit_are_named(words, environ, names):
    error = mistake(lambda: check(countdown(*words.split(), **environ)))
    assert all(name in str(error) for name in names), str(error)


@pytest.mark.parametrize("name", VALUES)
def test_a_wrong_value_of_a_variable_that_sets_no_key_is_refused_before_the_start(name, monkeypatch):
    wrong = ("abc?", "-1") if name not in ("RAY_WAIT_MINUTES", "WATCHDOG_MINUTES") else ("ten", "-1", "nan")
    for value in wrong:
        monkeypatch.setenv(name, value)
        mistake(lambda: preflight.check_before_data(load("countdown")), name)
    monkeypatch.setenv(name, " ")
    preflight.check_before_data(load("countdown"))
