"""From what a user calls a model to its folder, and from a data file to its questions."""

from __future__ import annotations

import huggingface_hub
import pyarrow.parquet as pq
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from recipes.errors import RecipeError
from recipes.evaluation.models import find_model
from recipes.evaluation.questions import has_images, load_questions, with_images


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
    assert (model.folder, model.name) == (folder, "run global_step_5")
    assert f"evaluating {folder}, its only model" in model.note
    whole = find_model(str(folder))
    assert (whole.folder, whole.note) == (folder, "")


@pytest.mark.parametrize("asked", ["", "/global_step_60", "/global_step_60/actor", "/global_step_60/actor/huggingface"])
def test_several_checkpoints_are_listed_by_step(make_model, tmp_path, asked):
    folders = [make_model(f"run/global_step_{step}/actor/huggingface") for step in (5, 20, 100)]
    with pytest.raises(RecipeError, match="the checkpoints that exist: " if asked else "holds 3 models") as error:
        find_model(f"{tmp_path}/run{asked}")
    assert ", ".join(str(folder.relative_to(tmp_path / "run")) for folder in folders) in error.value.what
    assert f"the last is {folders[-1]}" in error.value.fix
    newest = find_model(str(tmp_path / "run"), newest=True)
    assert (newest.folder, "its last model" in newest.note) == (folders[-1], True)


def test_a_name_on_the_hub(monkeypatch, make_model):
    folder = make_model("models--Qwen--Qwen2.5-3B/snapshots/abc123")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *args, **kwargs: str(folder))
    assert find_model("Qwen/Qwen2.5-3B").name == "Qwen/Qwen2.5-3B"

    def nothing(*args, **kwargs):
        raise LocalEntryNotFoundError("cannot reach the hub")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", nothing)
    with pytest.raises(RecipeError, match="hub did not give") as error:
        find_model("someone/no-such-model", "--base_model_path")
    assert error.value.where == "--base_model_path"
    assert "cannot reach the hub" in error.value.fix


def test_a_limit_takes_the_first_rows_and_a_seed_random_ones(make_data):
    data = make_data(3000)

    def rows(**limits):
        return [question.row for question in load_questions(data, **limits)]

    assert rows(limit=3) == [0, 1, 2]
    assert rows(limit=5000) == list(range(3000))
    drawn = rows(limit=40, sample_seed=5)
    assert drawn == sorted(set(drawn)) == rows(limit=40, sample_seed=5) != rows(limit=40, sample_seed=6)
    assert (len(drawn), max(drawn) > 1000) == (40, True)


def test_questions_are_shown_as_a_person_reads_them(make_data, make_row):
    prompt = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    first, second = load_questions(make_data(rows=[make_row(3), make_row(0, prompt=prompt)]))
    assert (first.text, first.ground_truth, first.extra_info) == ("What is 3 + 3?", "6", {"split": "train", "index": 3})
    assert second.text == "[system]\nBe brief.\n\n[user]\nHi"


def test_files_that_cannot_be_evaluated(make_data, make_row, tmp_path):
    no_parquet, empty = tmp_path / "data.parquet", make_data(2, "empty")
    no_parquet.write_text("question,answer\n")
    pq.write_table(pq.read_table(empty).slice(0, 0), empty)
    bare = make_data(name="bare", rows=[{key: value for key, value in make_row(0).items() if key != "reward_model"}])
    for path, what, limit in (
        (tmp_path / "none.parquet", "there is no data file", None),
        (no_parquet, "not a parquet file", None),
        (empty, "the data set is empty", None),
        (bare, "holds the gold answers", None),
        (make_data(2), "--limit 0", 0),
    ):
        with pytest.raises(RecipeError, match=what):
            load_questions(path, limit=limit)
    for gold in ({"style": "rule", "ground_truth": ""}, {"style": "rule", "ground_truth": None}, None):
        data = make_data(rows=[make_row(0), make_row(1, reward_model=gold)])
        with pytest.raises(RecipeError, match="no gold answer") as error:
            load_questions(data)
        assert "row 1" in error.value.where
        assert len(load_questions(data, limit=1)) == 1, "rows beyond the limit are not judged"


def test_images_are_read_when_they_are_needed(make_data, make_row):
    prompts = ["<image> or <image>?", "What is on <image>?", "Nothing to see"]
    rows = [
        make_row(
            number,
            prompt=[{"role": "user", "content": prompt}],
            images=[{"bytes": f"{number}.{place}".encode()} for place in range(prompt.count("<image>"))],
        )
        for number, prompt in enumerate(prompts)
    ]
    data = make_data(rows=rows)
    questions = load_questions(data)
    assert [(question.image_count, question.images) for question in questions] == [(2, ()), (1, ()), (0, ())]
    assert {each.row: each.images for each in with_images(data, questions[1:])} == {1: (b"1.0",), 2: ()}
    assert has_images(data)
    rows[1]["images"] = []
    with pytest.raises(RecipeError, match=r"has 1 <image> and the row 0 images") as error:
        list(with_images(make_data(rows=rows), questions))
    assert "row 1" in error.value.where
    text = make_data(rows=[make_row(0, prompt=[{"role": "user", "content": "What does <image> mean in HTML?"}])])
    assert [question.image_count for question in load_questions(text)] == [0], "where rows have no images it is text"
