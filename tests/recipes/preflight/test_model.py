"""A model that is none is found before the trainer starts."""

from __future__ import annotations

import json

import pytest

from recipes.errors import RecipeError
from recipes.preflight import model


def broken(make, files, message, *changes):
    with pytest.raises(RecipeError, match=message) as caught:
        model.check_model(make(*changes))
    assert "worker.actor.model.model_path" in caught.value.where
    assert caught.value.fix


def test_a_good_model_passes(make):
    assert model.check_model(make()) == []


def test_a_path_that_does_not_exist(make, files):
    broken(make, files, "nowhere does not exist", f"worker.actor.model.model_path={files}/nowhere")


def test_a_folder_that_is_no_model(make, files):
    (files / "model" / "config.json").unlink()
    broken(make, files, "no config.json")


@pytest.mark.parametrize(
    ("text", "message"), [("{", "cannot be read"), ("{}", "names no architecture"), ("[]", "cannot be read")]
)
def test_a_configuration_that_is_none(make, files, text, message):
    (files / "model" / "config.json").write_text(text)
    broken(make, files, message)


def test_weights_missing_or_a_pointer_to_them(make, files):
    (files / "model" / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1")
    broken(make, files, "too small to hold weights")
    (files / "model" / "model.safetensors").unlink()
    broken(make, files, "has no weights")


def test_no_tokenizer(make, files):
    (files / "model" / "tokenizer_config.json").unlink()
    broken(make, files, "has no tokenizer")


def test_a_hubs_name_is_allowed_with_a_remark(make, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    for name in model._OFFLINE:
        monkeypatch.delenv(name, raising=False)
    (remark,) = model.check_model(make("worker.actor.model.model_path=Qwen/Qwen3-4B"))
    assert "Qwen/Qwen3-4B" in remark
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(RecipeError, match="HF_HUB_OFFLINE forbids"):
        model.check_model(make("worker.actor.model.model_path=Qwen/Qwen3-4B"))
    snapshot = tmp_path / "hub" / "models--Qwen--Qwen3-4B" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    assert model.check_model(make("worker.actor.model.model_path=Qwen/Qwen3-4B")) == []


@pytest.mark.parametrize(
    ("config", "fits"),
    [
        ({"max_position_embeddings": 96}, False),
        ({"max_position_embeddings": 112}, True),
        ({"max_position_embeddings": 96, "rope_scaling": {"factor": 2.0}}, True),
        ({"text_config": {"max_position_embeddings": 96}}, False),
        ({}, True),
    ],
)
def test_prompt_and_response_fit_the_models_positions(make, files, config, fits):
    recipe = make("data.max_prompt_length=48", "data.max_response_length=64")
    (files / "model" / "config.json").write_text(json.dumps({"architectures": ["A"], **config}))
    if fits:
        assert model.check_model(recipe) == []
        return
    with pytest.raises(RecipeError, match="112 tokens together, but the model has positions for 96") as caught:
        model.check_model(recipe)
    assert "MAX_RESPONSE_LENGTH" in caught.value.fix
