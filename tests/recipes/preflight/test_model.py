"""A model that is none, is too short, lacks a chat template, or has other weights than its config.json, is found."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from recipes.model_files import local_model
from recipes.paths import ROOT
from recipes.preflight import model
from recipes.settings import Source
from tests.mistakes import mistake

LFS_POINTER = "version https://git-lfs.github.com/spec/v1"


@pytest.mark.parametrize(
    ("file", "content"),
    [(None, None), ("config.json", None), ("model.safetensors", LFS_POINTER), ("tokenizer_config.json", None)],
)
def test_a_folder_that_is_no_model(make, files, file, content):
    recipe = make()
    assert model.check_model(recipe) == []
    if file is None:
        (files / "model").rename(files / "elsewhere")
    elif content is None:
        (files / "model" / file).unlink()
    else:
        (files / "model" / file).write_text(content)
    assert "worker.actor.model.model_path" in mistake(lambda: model.check_model(recipe)).where


def test_prompt_and_response_fit_the_models_positions(make, files):
    recipe = make("data.max_prompt_length=48", "data.max_response_length=64")
    for rope, fits in (
        ({"factor": 2.0}, True),
        ({"rope_type": "linear", "factor": 2.0}, True),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}, True),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 24}, False),
        ({"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 12}, False),
        ({"type": "mrope"}, False),
        (None, False),
    ):
        config = {"architectures": ["A"], "max_position_embeddings": 96, "rope_scaling": rope}
        (files / "model" / "config.json").write_text(json.dumps(config))
        if fits:
            assert model.check_context(recipe) == []
            continue
        assert "MAX_RESPONSE_LENGTH" in mistake(lambda: model.check_context(recipe)).fix


@pytest.mark.parametrize("name", ["{}/model-q4.gguf", "{}", "someone/Model-1B-GGUF"])
def test_weights_in_gguf_are_refused(make, tmp_path, name):
    (tmp_path / "model-q4.gguf").write_bytes(b"GGUF")
    error = mistake(lambda: model.check_model(make(f"worker.actor.model.model_path={name.format(tmp_path)}")))
    assert "safetensors" in error.fix


@pytest.mark.parametrize(
    ("name", "size", "whole", "fitting"),
    [
        ("Qwen/Qwen2.5-7B-Instruct", 8, "28 attention heads", "1 or 2 or 4"),
        ("Qwen/Qwen2.5-VL-3B-Instruct", 8, "3,420 hidden units of the vision tower's MLP", "1 or 2 or 4"),
        ("{}", 2, "5 attention heads", "1"),
        ("{}", 4, None, ""),
        ("{}", 8, "3 key-value heads", "1"),
        ("Qwen/Qwen2.5-3B", 4, None, ""),  # of 2 key-value heads each is copied once
        ("someone/unknown", 8, None, ""),
    ],
)
def test_vllm_can_divide_the_model_among_its_gpus(make, files, name, size, whole, fitting):
    heads = {"2": (5, 5), "4": (4, 1), "8": (24, 3)}[str(size)]
    config = {"num_attention_heads": heads[0], "num_key_value_heads": heads[1], "vocab_size": 464}
    (files / "model" / "config.json").write_text(json.dumps(config))
    recipe = make(
        f"worker.actor.model.model_path={name.format(files / 'model')}",
        f"worker.rollout.tensor_parallel_size={size}",
        "trainer.n_gpus_per_node=8",
    )
    if whole is None:
        assert model.check_tensor_parallel(recipe) == []
    else:
        error = mistake(lambda: model.check_tensor_parallel(recipe))
        assert f"divide the model's {whole} (" in error.what
        assert error.fix.endswith(f" to {fitting}")


@pytest.mark.parametrize("named", ["q_proj,embed_tokens", "lm_head"])
def test_adapters_that_no_saved_weight_can_hold_are_refused(make, named):
    lora = ("worker.actor.model.lora.rank=4", f"worker.actor.model.lora.target_modules={named}")
    mistake(lambda: model.check_context(make(*lora)))
    assert model.check_context(make(*lora, "trainer.save_hf_model=false")) == []


def test_the_revision_that_is_loaded_is_the_one_that_is_read(monkeypatch, tmp_path):
    """The hub's cache says which folder a name stands for; another may be newer."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    cache = tmp_path / "models--org--model"
    for revision in ("1" * 40, "2" * 40):
        (cache / "snapshots" / revision).mkdir(parents=True)
        (cache / "snapshots" / revision / "config.json").write_text("{}")
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text("1" * 40)
    assert local_model("org/model") == cache / "snapshots" / ("1" * 40)
    assert local_model("org/model@" + "2" * 40) == cache / "snapshots" / ("2" * 40)
    assert local_model("org/model@other") is None
    assert local_model("no/such/folder") is None


def test_a_hubs_model_that_is_not_here_is_remarked(make, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    (remark,) = model.check_model(make("worker.actor.model.model_path=org/model"))
    assert "org/model" in remark


CHATML = (
    "{%- for message in messages %}\n<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{%- endfor %}\n"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture
def folder(files):
    def write(template=CHATML, eos="<|im_end|>", ids=(7,)):
        place = files / "model"
        added = [{"id": 7, "content": "<|im_end|>"}, {"id": 8, "content": "<|endoftext|>"}]
        (place / "tokenizer.json").write_text(json.dumps({"added_tokens": added}))
        config = {"chat_template": template, "eos_token": {"content": eos} if eos else None}
        (place / "tokenizer_config.json").write_text(json.dumps({k: v for k, v in config.items() if v}))
        (place / "generation_config.json").write_text(json.dumps({"eos_token_id": list(ids)}))

    return write


def test_what_the_model_would_not_understand_is_remarked(make, folder):
    marked = CHATML.replace("{{ message.content }}", "{% generation %}{{ message.content }}{% endgeneration %}")
    for fine in ({}, {"eos": "<|endoftext|>", "ids": (8, 7)}, {"template": marked}):
        folder(**fine)
        assert model.check_chat_template(make()) == []
    folder(eos="<|endoftext|>", ids=(8,))
    (remark,) = model.check_chat_template(make())
    assert "'<|im_end|>', which is no stop token" in remark
    folder()
    (remark,) = model.check_chat_template(make("ENABLE_THINKING=false"))
    assert "enable_thinking has no effect" in remark
    recipe = make("ENABLE_THINKING=false")
    recipe._sources["data.enable_thinking"] = Source("recipe", "own.yaml", own=True)
    assert model.check_chat_template(recipe) == []
    folder(template=CHATML + "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}")
    assert model.check_chat_template(make("ENABLE_THINKING=false")) == []


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"template": None}, "chat_template.jinja"),
        ({"template": "{% for message in messages %}"}, "tokenizer_config.json"),
        ({"eos": None, "ids": ()}, "generation_config.json"),
    ],
)
def test_what_no_run_survives_is_an_error(make, folder, change, where):
    folder(**change)
    assert where in mistake(lambda: model.check_chat_template(make())).where


TINY = ROOT / "recipes" / "tasks" / "countdown" / "tiny"
LAYER = "model.layers.1.mlp.up_proj.weight"
UNTIED = {"tie_word_embeddings": False}


@pytest.mark.parametrize(
    ("changed", "config", "found"),
    [
        (lambda each: each, {}, {}),
        (lambda each: each | {"lm_head.weight": each["model.embed_tokens.weight"].clone()}, {}, {}),
        (lambda each: {name.removeprefix("model."): tensor for name, tensor in each.items()}, {}, {}),
        (lambda each: each, UNTIED, {model.MISSING: "lm_head.weight"}),
        (lambda each: {name: each[name] for name in each if name != LAYER}, {}, {model.MISSING: LAYER}),
        (
            lambda each: {f"_orig_mod.{name}": tensor for name, tensor in each.items()},
            {},
            {model.MISSING: "lm_head.weight", model.UNREAD: "_orig_mod.model.embed_tokens.weight"},
        ),
        (
            lambda each: each,
            {"vocab_size": 512},
            {model.RESHAPED: "model.embed_tokens.weight (464, 160), not (512, 160)"},
        ),
        (
            lambda each: each,
            {"num_hidden_layers": 1, "layer_types": None, "max_window_layers": 1},
            {model.ELSEWHERE: "model.layers.1.input_layernorm.weight"},
        ),
        (lambda each: each | {"v_head.weight": torch.ones(1)}, {}, {model.UNREAD: "v_head.weight"}),
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
    compared = model.compare(str(tmp_path), trust_remote_code=False)
    assert {how: names[0] for how, names in compared.items() if names and how != model.MODULES} == found


MODULES = {model.MODULES: ["model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.v_proj", "lm_head"]}


@pytest.mark.parametrize("found", [{}, {model.UNREAD: ["v_head"]}, {model.MISSING: ["a", "b", "c", "d"]}])
def test_a_model_is_compared_once_and_what_nothing_reads_is_a_remark(make, files, tmp_path, monkeypatch, found):
    asked = []
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(model, "ask", lambda *_, **__: asked.append(1) or {**found, **MODULES})
    for _ in range(2):
        if model.MISSING in found:
            assert "4 tensors missing (a, b, c, ...)" in mistake(lambda: model.check_weights(make())).what
        else:
            assert len(model.check_weights(make())) == len(found)
    assert len(asked) == 1
    if model.MISSING not in found:
        for text in ("# a model of its own", "# which has changed"):
            (files / "model" / "modeling.py").write_text(text)
            model.check_weights(make("worker.actor.model.trust_remote_code=true"))
        assert len(asked) == 3


@pytest.mark.parametrize(
    ("named", "unknown"),
    [
        ("q_proj,v_projj", "v_projj"),
        ("nonsense", "nonsense"),
        ("", ""),
        ("*_proj", "*_proj"),
        ("q_proj,.*_proj", "q_proj,.*_proj"),
        ("q_proj v_proj", "q_proj v_proj"),
        ("all-linear", None),
        ("[q_proj, 'v_proj']", None),
        ("self_attn.q_proj", None),
        (".*_proj", None),
        (r".*\.\d{1,2}\..*[qv]_proj", None),
    ],
)
def test_adapters_are_of_modules_that_the_model_has(make, tmp_path, monkeypatch, named, unknown):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(model, "ask", lambda *_, **__: MODULES)
    recipe = make("worker.actor.model.lora.rank=4", f"{model.TARGETS}={named}")
    if unknown is None:
        assert model.check_weights(recipe) == []
    else:
        error = mistake(lambda: model.check_weights(recipe))
        assert f"named {unknown}; it has lm_head, q_proj, v_proj" in error.what
