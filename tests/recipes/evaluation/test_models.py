"""From what a user calls a model to its folder, and from a data file to its questions."""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest

from recipes.errors import RecipeError
from recipes.evaluation.models import find_model
from recipes.evaluation.questions import clusters_of, load_questions


def test_what_is_no_model(make_model, tmp_path):
    bare = make_model("bare", weights=None)
    shards = make_model("run/global_step_5/actor/huggingface", weights=None)
    (shards.parent / "model_world_size_1_rank_0.pt").write_bytes(b"")
    for asked, fix in (
        (tmp_path / "none", "owner/name"),
        (bare, "trainer.save_hf_model=true"),
        (shards, "verl.model_merger merge"),
    ):
        with pytest.raises(RecipeError) as error:
            find_model(str(asked))
        assert fix in error.value.fix
        assert error.value.where == "--model_path"


@pytest.mark.parametrize("asked", ["run", "run/global_step_5"])
def test_the_only_model_of_a_checkpoint_is_taken_and_named(make_model, tmp_path, asked):
    folder = make_model("run/global_step_5/actor/huggingface")
    model = find_model(str(tmp_path / asked))
    assert (model.folder, model.name) == (folder, "run global_step_5")
    assert f"evaluating {folder}" in model.note


def test_a_run_is_its_last_whole_step(make_model, tmp_path):
    """The tracker is written last, so a later step was cut off; a step without weights is no model."""
    folders = [make_model(f"run/global_step_{step}/actor/huggingface") for step in (5, 20, 100)]
    assert find_model(str(tmp_path / "run")).folder == folders[-1]
    (tmp_path / "run" / "latest_checkpointed_iteration.txt").write_text("20")
    assert find_model(str(tmp_path / "run")).folder == folders[1]
    assert "its last whole model" in find_model(str(tmp_path / "run")).note
    (folders[1] / "model.safetensors").unlink()
    assert find_model(str(tmp_path / "run")).folder == folders[0]


def test_a_missing_step_lists_those_of_its_own_run(make_model, tmp_path):
    for name in ("run/global_step_100", "run/global_step_20", "other/global_step_7"):
        make_model(f"{name}/actor/huggingface")
    for asked, listed in ((f"{tmp_path}/run/global_step_60/actor", ("20", "100")), (str(tmp_path), ("20", "100", "7"))):
        with pytest.raises(RecipeError) as error:
            find_model(asked)
        assert all(f"global_step_{step}/" in error.value.what for step in listed)
        assert ("global_step_7/" in str(error.value)) == ("7" in listed)


def test_files_that_cannot_be_evaluated(make_data, make_row, tmp_path):
    no_parquet, empty = tmp_path / "data.parquet", make_data(2, "empty")
    no_parquet.write_text("question,answer\n")
    pq.write_table(pq.read_table(empty).slice(0, 0), empty)
    bare = make_data(name="bare", rows=[{key: value for key, value in make_row(0).items() if key != "reward_model"}])
    for path in (no_parquet, empty, bare):
        with pytest.raises(RecipeError) as error:
            load_questions(path)
        assert str(path) in str(error.value)
    for gold in ({"style": "rule", "ground_truth": None}, None):
        data = make_data(rows=[make_row(0), make_row(1, reward_model=gold)])
        with pytest.raises(RecipeError) as error:
            load_questions(data)
        assert "row 1" in error.value.where
        assert len(load_questions(data, limit=1)) == 1, "rows beyond the limit are not judged"


def test_the_step_is_of_its_own_folder_and_not_of_the_experiments_name(make_model, tmp_path):
    folders = [make_model(f"from_global_step_40/global_step_{step}/actor/huggingface") for step in (9, 100)]
    assert find_model(str(tmp_path / "from_global_step_40")).folder == folders[1]


def test_questions_are_the_same_by_prompt_and_truth(make_data, make_row):
    rows = [make_row(0), make_row(1), make_row(0), make_row(0, reward_model={"style": "rule", "ground_truth": "7"})]
    assert clusters_of(load_questions(make_data(rows=rows))) == [0, 1, 0, 3]
    assert clusters_of(load_questions(make_data(rows=rows[:2]))) is None
