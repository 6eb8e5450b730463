"""Layers and mistakes of this recipe's configuration; the recipe file itself; the launcher's variables."""

from __future__ import annotations

import re
from operator import attrgetter

import pytest

from recipes.errors import RecipeError
from recipes.paths import ROOT
from recipes.pointer_selector.config import VARIABLES, PointerRecipe, changed, resolve, to_yaml
from recipes.pointer_selector.preparation import files, prepare


def test_the_launcher_lists_variables_with_the_recipes_values():
    launcher = (ROOT / "examples" / "pointer_selector" / "rce_grpo.sh").read_text()
    listed = re.findall(r"^#   ([A-Z_]+) +(\S+) ", launcher, re.MULTILINE)
    assert len(listed) >= 17
    keys = {variable.name: variable.key for variable in VARIABLES}
    recipe = resolve(environ={})
    for name, shown in listed:
        value = attrgetter(keys[name])(recipe)
        assert shown == ("null" if value is None else str(value)), name


def test_later_layers_win(tmp_path):
    default = resolve(environ={}).rce.epochs
    assert resolve(environ={"RCE_EPOCHS": ""}).rce.epochs == default
    assert resolve(["rce.epochs=7"], environ={"RCE_EPOCHS": "6"}).rce.epochs == 7
    assert resolve(environ={"HARDWARE": "cpu"}).trainer.device == "cpu"
    home = {"HOME": str(tmp_path)}
    assert resolve(environ=home).trainer.logger == ["console", "file", "tensorboard"]
    assert "wandb" in resolve(environ={**home, "WANDB_API_KEY": "x" * 40}).trainer.logger
    path = tmp_path / "resolved.yaml"
    recipe = resolve(["grpo.kl.beta=0.3", "validation.shots=1,2"], environ={})
    path.write_text(to_yaml(recipe), encoding="utf-8")
    assert resolve(path=path, environ={}) == recipe
    path.write_text("engine: verl\n")
    with pytest.raises(RecipeError, match="another engine"):
        resolve(path=path, environ={})


MISTAKES = {
    "unknown key grpo.learning_rate": (["grpo.learning_rate=1"], {}),
    "did you mean rce.epochs": (["rce.epoch=1"], {}),
    "did you mean RCE_EPOCHS": ([], {"RCE_EPOCH": "1"}),
    "rce.epochs is 'many', expected whole number": (["rce.epochs=many"], {}),
    "policy.layers is 4, expected whole number, .*less than or equal to 3": ([], {"NUM_LAYERS": "4"}),
    "did you mean correctness": ([], {"REWARD_MODE": "correctnes"}),
    "'3-5', a range; .*(?s:.)*RCE_EPOCHS=3, or one run for each: for value in 3 5": ([], {"RCE_EPOCHS": "3-5"}),
    "'1e-5-1e-4', a range; one run takes one value": (["rce.lr=1e-5-1e-4"], {}),
    "unknown hardware 'tpu'": ([], {"HARDWARE": "tpu"}),
}


@pytest.mark.parametrize("message", MISTAKES)
def test_mistakes_are_named(message):
    arguments, environ = MISTAKES[message]
    with pytest.raises(RecipeError) as caught:
        resolve(arguments, environ=environ)
    assert re.search(message, str(caught.value)), str(caught.value)
    assert caught.value.where


def test_files_and_workload_fit_the_recipe(tmp_path, monkeypatch):
    with pytest.raises(RecipeError, match=r"data.query_embeddings is not set"):
        files(changed(PointerRecipe(), {"data.candidates": "/x.json"}).data)
    given = files(changed(PointerRecipe(), {"data.candidates": "/x.json", "data.query_embeddings": "/q.npz"}).data)
    assert [str(path) for path in given] == ["/x.json", "/q.npz", "/q.npz", "None"]
    monkeypatch.setenv("ARTIFACTS_DIR", str(tmp_path))
    sizes = {"train_images": 20, "validation_images": 5, "test_images": 5, "pool_size": 6, "beam": 2, "sampled": 1}
    recipe = changed(PointerRecipe(), {f"workload.{name}": value for name, value in sizes.items()})
    assert len(prepare(recipe).parts["train"]) == 20
    with pytest.raises(RecipeError, match="made with other settings"):
        prepare(changed(recipe, {"workload.label_noise": 0.5}))
    with pytest.raises(RecipeError, match="no logged sequence has 6 picks; the longest has 4"):
        prepare(changed(recipe, {"data.shot_num": 6}))
    exact = prepare(changed(recipe, {"data.shot_num": 2, "data.shot_mode": "exact", "data.train_queries": 7}))
    assert (set(exact.parts["train"].lengths), len(exact.parts["train"])) == ({2}, 7)
