"""A model that is none, is too short, cannot pack, or that its hub does not give, is found before the start."""

from __future__ import annotations

import http.server
import json
import socket
import threading

import pytest

from recipes.errors import RecipeError
from recipes.model_files import local_model
from recipes.preflight import model

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
    with pytest.raises(RecipeError) as caught:
        model.check_model(recipe)
    assert "worker.actor.model.model_path" in caught.value.where
    assert caught.value.fix


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
            assert model.check_model(recipe) == []
            continue
        with pytest.raises(RecipeError) as caught:
            model.check_model(recipe)
        assert "MAX_RESPONSE_LENGTH" in caught.value.fix


@pytest.mark.parametrize("name", ["{}/model-q4.gguf", "{}", "someone/Model-1B-GGUF"])
def test_weights_in_gguf_are_refused(make, tmp_path, name):
    (tmp_path / "model-q4.gguf").write_bytes(b"GGUF")
    with pytest.raises(RecipeError) as caught:
        model.check_model(make(f"worker.actor.model.model_path={name.format(tmp_path)}"))
    assert "safetensors" in caught.value.fix


@pytest.mark.parametrize(
    ("heads", "keys", "change", "fitting"),
    [
        (28, 4, "worker.rollout.tensor_parallel_size=8", "1, 2, 4, 28"),
        (28, 4, "worker.actor.ulysses_size=8", "1, 2, 4, 28"),
        (32, 8, "worker.rollout.tensor_parallel_size=3", "1, 2, 4, 8, 16, 32"),
        (40, 10, "worker.rollout.tensor_parallel_size=4", "1, 2, 5, 10, 20, 40"),
    ],
)
def test_gpus_share_whole_heads(make, files, heads, keys, change, fitting):
    sizes = {"architectures": ["A"], "num_attention_heads": heads, "num_key_value_heads": keys}
    (files / "model" / "config.json").write_text(json.dumps(sizes))
    assert model.check_model(make()) == []
    with pytest.raises(RecipeError) as caught:
        model.check_model(make(change))
    assert caught.value.fix.endswith(f"to one of {fitting}")
    assert change.partition("=")[0] in caught.value.where


def test_heads_of_a_model_that_was_not_fetched_are_known_by_its_name(make):
    with pytest.raises(RecipeError, match="tensor_parallel_size"):
        model._check_heads(
            make("worker.actor.model.model_path=Qwen/Qwen2.5-7B-Instruct", "worker.rollout.tensor_parallel_size=8")
        )


@pytest.mark.parametrize(("named", "tied"), [("q_proj,embed_tokens", False), ("lm_head", True)])
def test_adapters_that_no_saved_weight_can_hold_are_refused(make, files, named, tied):
    (files / "model" / "config.json").write_text(json.dumps({"architectures": ["A"], "tie_word_embeddings": tied}))
    lora = ("worker.actor.model.lora.rank=4", f"worker.actor.model.lora.target_modules={named}")
    with pytest.raises(RecipeError, match="target_modules"):
        model.check_model(make(*lora))
    assert model.check_model(make(*lora, "trainer.save_hf_model=false")) == []
    assert model.check_model(make(lora[0], "worker.actor.model.lora.target_modules=q_proj,o_proj")) == []


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


@pytest.fixture
def on_hub(make, monkeypatch, tmp_path):
    """A recipe whose model is on the hub at a port of this machine."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    for name in model.OFFLINE:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)  # read once, at its import

    def build(port=9, name="org/model"):
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{port}")
        return make(f"worker.actor.model.model_path={name}")

    return build


def test_a_hubs_model_is_fetched_unless_that_is_forbidden(on_hub, monkeypatch):
    assert "org/model is not in the hub's cache yet" in model.check_model(on_hub())[0]
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(RecipeError, match="HF_HUB_OFFLINE"):
        model.check_model(on_hub())


def test_a_model_that_needs_a_licence_is_an_error(on_hub):
    class Refusing(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.send_response(401)
            self.end_headers()

        def log_message(self, *_):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(RecipeError, match="org/model"):
            model.check_hub(on_hub(server.server_port))
        server.shutdown()


def test_a_hub_that_is_silent_or_not_there_is_an_error_within_seconds(on_hub, monkeypatch):
    assert model.HUB_TIMEOUT_S < 10
    monkeypatch.setattr(model, "HUB_TIMEOUT_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(RecipeError, match=f"127.0.0.1:{port}"):
            model.check_hub(on_hub(port))
    with pytest.raises(RecipeError, match=f"127.0.0.1:{port}") as caught:
        model.check_hub(on_hub(port))
    assert "MODEL_PATH" in caught.value.fix
    assert "worker.actor.model.model_path" in caught.value.where
