"""Layers and mistakes of this recipe's configuration; the recipe file itself; the launcher's variables."""

from __future__ import annotations

import re

import pytest

from recipes.errors import RecipeError
from recipes.paths import ROOT
from recipes.pointer_selector.config import VARIABLES, PointerRecipe, changed, resolve, to_yaml
from recipes.pointer_selector.preparation import files, prepare

LAUNCHER = ROOT / "examples" / "pointer_selector" / "rce_grpo.sh"
ASKED = (
    "RCE_EPOCHS GRPO_EPOCHS BATCH_SIZE RCE_LR GRPO_LR KL_BETA REWARD_ALPHA REWARD_BETA REWARD_MODE NUM_LAYERS SHOT_NUM"
)
VALUES = {
    "RCE_EPOCHS": ("7", 7), "GRPO_EPOCHS": ("0", 0), "BATCH_SIZE": ("32", 32), "RCE_LR": ("1e-5", 1e-5),
    "GRPO_LR": ("2e-4", 2e-4), "KL_BETA": ("0.1", 0.1), "REWARD_ALPHA": ("0.5", 0.5), "REWARD_BETA": ("2", 2.0),
    "REWARD_MODE": ("hard_soft", "hard_soft"), "NUM_LAYERS": ("3", 3), "SHOT_NUM": ("2", 2),
    "EARLY_STOP_PATIENCE": ("0", 0), "SEED": ("17", 17), "EXPERIMENT_NAME": ("mine", "mine"),
    "PROJECT_NAME": ("p", "p"),
    "LOGGER": ("console,file", ["console", "file"]), "RESUME": ("0", False), "CANDIDATES": ("/d/c.json", "/d/c.json"),
    "QUERY_EMBEDDINGS": ("/d/q.npz", "/d/q.npz"), "CANDIDATE_EMBEDDINGS": ("/d/c.npz", "/d/c.npz"),
}  # fmt: skip


def value(recipe, path):
    for part in path.split("."):
        recipe = getattr(recipe, part)
    return recipe


@pytest.mark.parametrize("variable", VARIABLES, ids=lambda v: v.name)
def test_every_variable_sets_its_key(variable):
    text, expected = VALUES[variable.name]
    assert value(resolve(environ={variable.name: text}), variable.key) == expected


def test_the_table_has_what_was_promised_and_the_launcher_passes_it_on():
    names = {variable.name for variable in VARIABLES}
    promised = {*ASKED.split(), "EARLY_STOP_PATIENCE", "SEED"}
    assert promised <= names
    exported = set(re.findall(r"^export (\w+)=", LAUNCHER.read_text(), re.MULTILINE))
    assert promised <= exported <= names


def test_later_layers_win():
    assert resolve(environ={}).rce.epochs == 5
    assert resolve(environ={"RCE_EPOCHS": "6"}).rce.epochs == 6
    assert resolve(["rce.epochs=7"], environ={"RCE_EPOCHS": "6"}).rce.epochs == 7
    assert resolve(environ={"RCE_EPOCHS": ""}).rce.epochs == 5
    assert resolve(environ={"HARDWARE": "cpu"}).trainer.device == "cpu"
    assert resolve(environ={}).trainer.device == "auto"


def test_wandb_takes_part_only_if_asked_for_or_logged_in(tmp_path):
    assert "wandb" not in resolve(environ={"HOME": str(tmp_path)}).trainer.logger
    assert "tensorboard" in resolve(environ={"HOME": str(tmp_path)}).trainer.logger
    assert "wandb" in resolve(environ={"HOME": str(tmp_path), "WANDB_API_KEY": "x" * 40}).trainer.logger
    assert "wandb" in resolve(environ={"HOME": str(tmp_path), "LOGGER": "file,wandb"}).trainer.logger


MISTAKES = {
    "key": (["grpo.learning_rate=1"], {}, "unknown key grpo.learning_rate"),
    "near key": (["rce.epoch=1"], {}, "did you mean rce.epochs"),
    "variable": ([], {"RCE_EPOCH": "1"}, "did you mean RCE_EPOCHS"),
    "type": (["rce.epochs=many"], {}, "rce.epochs is 'many', expected whole number"),
    "bound": ([], {"NUM_LAYERS": "4"}, "policy.layers is 4, expected whole number .*less than or equal to 3"),
    "mode": ([], {"REWARD_MODE": "correctnes"}, "did you mean correctness"),
    "group": (["rce=3"], {}, "rce is a group"),
    "form": (["rce.epochs"], {}, "is not key=value"),
    "twice": (["rce.epochs=1", "rce.epochs=2"], {}, "given twice"),
    "hardware": ([], {"HARDWARE": "tpu"}, "unknown hardware 'tpu'"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_named(name):
    arguments, environ, message = MISTAKES[name]
    with pytest.raises(RecipeError) as caught:
        resolve(arguments, environ=environ)
    assert re.search(message, str(caught.value)), str(caught.value)
    assert caught.value.where


def test_a_resolved_recipe_resolves_to_itself(tmp_path):
    recipe = resolve(["grpo.kl.beta=0.3", "validation.shots=1,2"], environ={})
    path = tmp_path / "resolved.yaml"
    path.write_text(to_yaml(recipe), encoding="utf-8")
    assert resolve(path=path, environ={}) == recipe


def test_the_file_of_another_engine_is_refused(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text("engine: verl\n")
    with pytest.raises(RecipeError, match="another engine"):
        resolve(path=path, environ={})


def test_files_come_together():
    with pytest.raises(RecipeError, match=r"data.query_embeddings is not set"):
        files(changed(PointerRecipe(), {"data.candidates": "/x.json"}).data)
    given = files(changed(PointerRecipe(), {"data.candidates": "/x.json", "data.query_embeddings": "/q.npz"}).data)
    assert (given.examples, given.model, given.embedded) == (given.queries, None, False)


def test_a_workload_made_with_other_settings_is_not_used(tmp_path, monkeypatch):
    monkeypatch.setenv("ARTIFACTS_DIR", str(tmp_path))
    small = {
        "train_images": 20,
        "validation_images": 5,
        "test_images": 5,
        "pool_size": 6,
        "beam": 2,
        "sampled": 1,
        "random": 1,
    }
    recipe = changed(PointerRecipe(), {f"workload.{k}": v for k, v in small.items()})
    prepared = prepare(recipe)
    assert len(prepared.parts["train"]) == 20
    with pytest.raises(RecipeError, match="made with other settings"):
        prepare(changed(recipe, {"workload.label_noise": 0.5}))
    with pytest.raises(RecipeError, match="no logged sequence has 6 picks; the longest has 4"):
        prepare(changed(recipe, {"data.shot_num": 6}))
    exact = prepare(changed(recipe, {"data.shot_num": 2, "data.shot_mode": "exact"}))
    assert set(exact.parts["train"].lengths) == {2}
