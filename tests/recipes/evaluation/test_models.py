"""From what a user calls a model to its folder."""

from __future__ import annotations

import pytest

from recipes.errors import RecipeError
from recipes.evaluation.models import find_model


def test_a_folder_with_weights(make_model):
    folder = make_model()
    model = find_model(str(folder))
    assert (model.folder, model.name, model.note) == (folder, "model", "")


def test_what_is_no_model(make_model, tmp_path):
    file = make_model("whole") / "model.safetensors"
    empty, bare = tmp_path / "empty", make_model("bare", weights=None)
    empty.mkdir()
    shards = make_model("run/global_step_5/actor/huggingface", weights=None)
    (shards.parent / "model_world_size_1_rank_0.pt").write_bytes(b"")
    for asked, what, fix in (
        (tmp_path / "none", "there is no model", "owner/name"),
        (file, "is a file", str(file.parent)),
        (empty, r"no config\.json", "global_step_<n>/actor/huggingface"),
        (bare, "no weights", "save_contents"),
        (shards, "no weights", "verl.model_merger merge"),
    ):
        with pytest.raises(RecipeError, match=what) as error:
            find_model(str(asked))
        assert fix in error.value.fix
        assert error.value.where == "--model_path"


@pytest.mark.parametrize("asked", ["run", "run/global_step_5", "run/global_step_5/actor"])
def test_the_only_model_of_a_checkpoint_is_taken_and_named(make_model, tmp_path, asked):
    folder = make_model("run/global_step_5/actor/huggingface")
    model = find_model(str(tmp_path / asked))
    assert model.folder == folder
    assert model.name == "run global_step_5"
    assert str(folder) in model.note
    assert "only model" in model.note


def test_several_checkpoints_are_listed_by_step(make_model, tmp_path):
    for step in (5, 10, 100):
        make_model(f"run/global_step_{step}/actor/huggingface")
    with pytest.raises(RecipeError, match="holds 3 models") as found:
        find_model(str(tmp_path / "run"))
    assert "global_step_100/actor/huggingface" in found.value.fix
    assert found.value.what.index("step_5/") < found.value.what.index("step_10/") < found.value.what.index("step_100/")


@pytest.mark.parametrize("below", ["", "/actor/huggingface", "/actor"])
def test_a_wrong_step_lists_those_that_exist(make_model, tmp_path, below):
    for step in (20, 100):
        make_model(f"run/global_step_{step}/actor/huggingface")
    with pytest.raises(RecipeError, match="the checkpoints that exist: ") as error:
        find_model(f"{tmp_path}/run/global_step_60{below}")
    assert error.value.what.index("global_step_20/") < error.value.what.index("global_step_100/")
    assert "global_step_100/actor/huggingface" in error.value.fix


def test_the_newest_of_several_may_be_taken(make_model, tmp_path):
    folders = [make_model(f"run/global_step_{step}/actor/huggingface") for step in (9, 10)]
    model = find_model(str(tmp_path / "run"), newest=True)
    assert model.folder == folders[1]
    assert "its last model" in model.note


def test_a_name_that_the_hub_does_not_give(monkeypatch):
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    def nothing(*args, **kwargs):
        raise LocalEntryNotFoundError("cannot reach the hub")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", nothing)
    with pytest.raises(RecipeError, match="hub did not give") as found:
        find_model("someone/no-such-model", "--base_model_path")
    assert found.value.where == "--base_model_path"
    assert "cannot reach the hub" in found.value.fix


def test_a_name_on_the_hub(monkeypatch, tmp_path, make_model):
    import huggingface_hub

    folder = make_model("models--Qwen--Qwen2.5-3B/snapshots/abc123")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *args, **kwargs: str(folder))
    assert find_model("Qwen/Qwen2.5-3B").name == "Qwen/Qwen2.5-3B"
