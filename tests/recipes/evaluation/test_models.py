"""From what a user calls a model to its folder, and from a data file to its questions."""

import pyarrow.parquet as pq
import pytest

from recipes.evaluation.models import find_evaluated_model, find_model
from recipes.evaluation.openai_server import Server
from recipes.evaluation.questions import VERL_ROWS, RowFormat, load_questions, outside_pictures, with_images
from tests.mistakes import mistake


def test_what_is_no_model(make_model, tmp_path):
    bare = make_model("bare", weights=None)
    shards = make_model("run/global_step_5/actor/huggingface", weights=None)
    (shards.parent / "model_world_size_1_rank_0.pt").write_bytes(b"")
    make_model("run/global_step_20/actor/huggingface")
    for asked, fix in (
        (tmp_path / "none", "owner/name"),
        (tmp_path, "actor/huggingface"),
        (bare, "trainer.save_hf_model=true"),
        (shards, "verl.model_merger merge"),
        (tmp_path / "run" / "global_step_60" / "actor", "5, 20"),
        (tmp_path / "none" / "global_step_60" / "actor", "has no checkpoint"),
    ):
        assert mistake(lambda asked=asked: find_model(str(asked)), fix).where == "--model_path"


def test_a_model_without_a_tokenizer_is_refused_where_it_is_named(make_model):
    """It was said after the data were made and the model's files hashed. A server has a tokenizer of its own."""
    folder = make_model()
    (folder / "tokenizer.json").unlink()
    error = mistake(lambda: find_evaluated_model("model", str(folder), "--model_path"), "no tokenizer")
    assert error.where == "--model_path"
    assert find_evaluated_model("model", str(folder), "--model_path", Server("http://host/v1", "m")).source.model == "m"


@pytest.mark.parametrize("asked", ["run", "run/global_step_5", "run/global_step_5/actor"])
def test_the_only_model_of_a_checkpoint_is_taken_and_named(make_model, tmp_path, asked):
    folder = make_model("run/global_step_5/actor/huggingface")
    model = find_evaluated_model("model", str(tmp_path / asked), "--model_path")
    assert (model.source, model.name) == (folder, "run global_step_5")
    assert str(folder) in model.note


def test_a_run_is_its_last_whole_step(make_model, tmp_path):
    """The tracker is written last, so a later step was cut off; a step without weights is no model."""
    run = tmp_path / "from_global_step_40"  # a name that is no step
    folders = [make_model(f"{run.name}/global_step_{step}/actor/huggingface") for step in (9, 20, 100)]
    assert find_model(str(run)) == folders[-1]
    (run / "latest_checkpointed_iteration.txt").write_text("20")
    assert find_model(str(run)) == folders[1]
    (folders[1] / "model.safetensors").unlink()
    assert find_model(str(run)) == folders[0]


def test_files_that_cannot_be_evaluated(make_data, make_row, tmp_path):
    no_parquet, empty = tmp_path / "data.parquet", make_data(2, "empty")
    no_parquet.write_text("question,answer\n")
    pq.write_table(pq.read_table(empty).slice(0, 0), empty)
    bare = make_data(name="bare", rows=[{key: value for key, value in make_row(0).items() if key != "reward_model"}])
    for path in (no_parquet, empty, bare):
        mistake(lambda path=path: load_questions(path), str(path))
    for gold in ({"style": "rule", "ground_truth": None}, None):
        data = make_data(rows=[make_row(0), make_row(1, reward_model=gold)])
        assert "row 1" in mistake(lambda data=data: load_questions(data)).where
        assert len(load_questions(data, limit=1)) == 1, "rows beyond the limit are not judged"


def test_questions_are_the_same_by_prompt_and_truth(make_data, make_row):
    rows = [make_row(0), make_row(1), make_row(0), make_row(0, reward_model={"style": "rule", "ground_truth": "7"})]
    keys = [question.key for question in load_questions(make_data(rows=rows))]
    assert (keys[0] == keys[2], len(set(keys))) == (True, 3)


def test_questions_with_images_are_the_same_by_id_too(make_data, make_row):
    """The second row with the same content has `-2` behind its id; ids of the user may end in a number as well."""
    prompt, ids = [{"role": "user", "content": "<image>How many?"}], ["0" * 20, "1" * 20, "0" * 20 + "-2", "x", "x-2"]
    rows = [make_row(0, prompt=prompt, id=id, images=[{"bytes": b""}]) for id in ids]
    keys = [question.key for question in load_questions(make_data(rows=rows))]
    assert (keys[0] == keys[2], len(set(keys))) == (True, 4)


def test_pictures_stand_in_the_column_that_the_recipe_names(make_data, make_row):
    prompt = [{"role": "user", "content": "<image>How many?"}]
    path = make_data(rows=[make_row(0, prompt=prompt, photos=[{"bytes": b"a"}])])
    (question,) = with_images(path, load_questions(path, read=RowFormat(images="photos")))
    assert question.images == (b"a",)
    (question,) = load_questions(path)
    assert question.image_count == 0, "another column has none"
    mistake(lambda: load_questions(path, read=RowFormat(images="pictures")), "no column pictures (its columns are data")


def test_pictures_are_those_that_training_shows(make_data, make_row, tmp_path):
    """Paths train, and were refused here; a picture beside too few marks was left out."""
    prompt = [{"role": "user", "content": "<image>How many?"}]
    (tmp_path / "a.png").write_bytes(b"a")

    def shown(*images, read=VERL_ROWS, prompt=prompt):
        rows = [make_row(i, prompt=prompt, problem="<image>?", images=each) for i, each in enumerate(images)]
        path = make_data(rows=rows)
        return [question.images for question in with_images(path, load_questions(path, read=read))]

    of_easyr1 = RowFormat("problem", "answer", image_dir=str(tmp_path))
    assert shown([{"bytes": b"a"}], [{"bytes": b"b"}]) == [(b"a",), (b"b",)]
    assert shown([str(tmp_path / "a.png")]) == shown(["a.png"], read=of_easyr1) == [(b"a",)]
    assert shown([b"a"], read=of_easyr1) == [(b"a",)]
    assert "row 1" in mistake(lambda: shown([{"bytes": b"a"}], [{"bytes": None}]), "no picture that verl opens").where
    mistake(lambda: shown([b"a"]), "no picture that verl opens")
    mistake(lambda: shown([{"bytes": b"a"}, None]), "1 <image> and the row 2 images")
    mistake(lambda: shown([{"bytes": b"a"}], prompt=make_row(0)["prompt"]), "0 <image> and the row 1 images")
    mistake(lambda: shown("a.png"), "a list of pictures")


def test_videos_are_refused(make_data, make_row):
    path = make_data(rows=[make_row(0, videos=[]), make_row(1, videos=["a.mp4"])])
    mistake(lambda: load_questions(path), "row 1: videos has a value")
    mistake(lambda: load_questions(path, read=RowFormat(videos="clips")), "no column clips")


def test_another_picture_behind_a_path_is_another_prompt(make_data, make_row, tmp_path):
    data, read = make_data(rows=[make_row(0, images=[str(tmp_path / "a.png")])]), RowFormat()
    found = [outside_pictures(data, read)]
    for content in (b"a", b"bc"):
        (tmp_path / "a.png").write_bytes(content)
        found.append(outside_pictures(data, read))
    assert [[size for size, _ in files.values()] for files in found] == [[], [1], [2]]
