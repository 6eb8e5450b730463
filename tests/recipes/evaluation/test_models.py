"""From what a user calls a model to its folder, and from a data file to its questions."""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest

from recipes.errors import RecipeError
from recipes.evaluation.models import find_model
from recipes.evaluation.questions import load_questions


def test_what_is_no_model(make_model, tmp_path):
    bare = make_model("bare", weights=None)
    shards = make_model("run/global_step_5/actor/huggingface", weights=None)
    (shards.parent / "model_world_size_1_rank_0.pt").write_bytes(b"")
    for asked, what, fix in (
        (tmp_path / "none", "there is no model", "owner/name"),
        (bare, "no weights", "save_contents"),
        (shards, "no weights", "verl.model_merger merge"),
    ):
        with pytest.raises(RecipeError, match=what) as error:
            find_model(str(asked))
        assert fix in error.value.fix
        assert error.value.where == "--model_path"


@pytest.mark.parametrize("asked", ["run", "run/global_step_5"])
def test_the_only_model_of_a_checkpoint_is_taken_and_named(make_model, tmp_path, asked):
    folder = make_model("run/global_step_5/actor/huggingface")
    model = find_model(str(tmp_path / asked))
    assert (model.folder, model.name) == (folder, "run global_step_5")
    assert f"evaluating {folder}, its only model" in model.note


@pytest.mark.parametrize("asked", ["", "/global_step_60/actor"])
def test_several_checkpoints_are_listed_by_step(make_model, tmp_path, asked):
    folders = [make_model(f"run/global_step_{step}/actor/huggingface") for step in (5, 20, 100)]
    with pytest.raises(RecipeError, match="the checkpoints that exist: " if asked else "holds 3 models") as error:
        find_model(f"{tmp_path}/run{asked}")
    assert ", ".join(str(folder.relative_to(tmp_path / "run")) for folder in folders) in error.value.what
    assert f"the last is {folders[-1]}" in error.value.fix
    newest = find_model(str(tmp_path / "run"), newest=True)
    assert (newest.folder, "its last model" in newest.note) == (folders[-1], True)


def test_files_that_cannot_be_evaluated(make_data, make_row, tmp_path):
    no_parquet, empty = tmp_path / "data.parquet", make_data(2, "empty")
    no_parquet.write_text("question,answer\n")
    pq.write_table(pq.read_table(empty).slice(0, 0), empty)
    bare = make_data(name="bare", rows=[{key: value for key, value in make_row(0).items() if key != "reward_model"}])
    for path, what in ((no_parquet, "not a parquet file"), (empty, "is empty"), (bare, "holds the gold answers")):
        with pytest.raises(RecipeError, match=what):
            load_questions(path)
    for gold in ({"style": "rule", "ground_truth": ""}, {"style": "rule", "ground_truth": None}, None):
        data = make_data(rows=[make_row(0), make_row(1, reward_model=gold)])
        with pytest.raises(RecipeError, match="no gold answer") as error:
            load_questions(data)
        assert "row 1" in error.value.where
        assert len(load_questions(data, limit=1)) == 1, "rows beyond the limit are not judged"
