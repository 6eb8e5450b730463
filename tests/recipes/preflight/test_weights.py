"""Weights that do not match their config.json are found by their names and shapes."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from recipes.paths import ROOT
from recipes.preflight import weights
from tests.mistakes import mistake

TINY = ROOT / "recipes" / "tasks" / "countdown" / "tiny"
LAYER = "model.layers.1.mlp.up_proj.weight"
UNTIED = {"tie_word_embeddings": False}


@pytest.mark.parametrize(
    ("changed", "config", "found"),
    [
        (lambda each: each, {}, {}),
        (lambda each: each | {"lm_head.weight": each["model.embed_tokens.weight"].clone()}, {}, {}),
        (lambda each: {name.removeprefix("model."): tensor for name, tensor in each.items()}, {}, {}),
        (lambda each: each, UNTIED, {weights.MISSING: "lm_head.weight"}),
        (lambda each: {name: each[name] for name in each if name != LAYER}, {}, {weights.MISSING: LAYER}),
        (
            lambda each: {f"_orig_mod.{name}": tensor for name, tensor in each.items()},
            {},
            {weights.MISSING: "lm_head.weight", weights.UNREAD: "_orig_mod.model.embed_tokens.weight"},
        ),
        (
            lambda each: each,
            {"vocab_size": 512},
            {weights.RESHAPED: "model.embed_tokens.weight (464, 160), not (512, 160)"},
        ),
        (
            lambda each: each,
            {"num_hidden_layers": 1, "layer_types": None, "max_window_layers": 1},
            {weights.ELSEWHERE: "model.layers.1.input_layernorm.weight"},
        ),
        (lambda each: each | {"v_head.weight": torch.ones(1)}, {}, {weights.UNREAD: "v_head.weight"}),
    ],
)
@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin"])
def test_names_and_shapes_are_compared_both_ways(tmp_path, monkeypatch, changed, config, found, file):
    monkeypatch.setattr("torch.equal", torch.equal)  # the function replaces it, in a process of its own
    shutil.copytree(TINY, tmp_path, dirs_exist_ok=True)
    tensors = changed(load_file(TINY / "model.safetensors"))
    (tmp_path / "model.safetensors").unlink()
    (torch.save if file.endswith("bin") else save_file)(tensors, tmp_path / file)
    (tmp_path / "config.json").write_text(json.dumps(json.loads((TINY / "config.json").read_text()) | config))
    compared = weights.compare(str(tmp_path), trust_remote_code=False)
    assert {how: names[0] for how, names in compared.items() if names and how != weights.MODULES} == found


MODULES = {weights.MODULES: ["model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.v_proj", "lm_head"]}


@pytest.mark.parametrize("found", [{}, {weights.UNREAD: ["v_head"]}, {weights.MISSING: ["a", "b", "c", "d"]}])
def test_a_model_is_compared_once_and_what_nothing_reads_is_a_remark(make, tmp_path, monkeypatch, found):
    asked = []
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(weights, "ask", lambda *_, **__: asked.append(1) or {**found, **MODULES})
    for _ in range(2):
        if weights.MISSING in found:
            assert "4 tensors missing (a, b, c, ...)" in mistake(lambda: weights.check_weights(make())).what
        else:
            assert len(weights.check_weights(make())) == len(found)
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("named", "unknown"),
    [
        ("q_proj,v_projj", "v_projj"),
        ("nonsense", "nonsense"),
        ("*_proj", "*_proj"),
        ("q_proj,.*_proj", ".*_proj"),
        ("q_proj v_proj", "q_proj v_proj"),
        ("all-linear", None),
        ("[q_proj, 'v_proj']", None),
        ("self_attn.q_proj", None),
        (".*_proj", None),
    ],
)
def test_adapters_are_of_modules_that_the_model_has(make, tmp_path, monkeypatch, named, unknown):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(weights, "ask", lambda *_, **__: MODULES)
    recipe = make("worker.actor.model.lora.rank=4", f"{weights.TARGETS}={named}")
    if unknown is None:
        assert weights.check_weights(recipe) == []
    else:
        error = mistake(lambda: weights.check_weights(recipe))
        assert f"named {unknown}; it has lm_head, q_proj, v_proj" in error.what
