"""Rows of a data file, and data files that are none."""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest

from recipes.errors import RecipeError
from recipes.evaluation.questions import has_images, load_questions, with_images


def test_rows_come_in_the_files_order(make_data, make_row):
    questions = load_questions(make_data(5))
    assert [question.row for question in questions] == [0, 1, 2, 3, 4]
    assert questions[3].text == "What is 3 + 3?"
    assert questions[3].ground_truth == "6"
    assert questions[3].extra_info == {"split": "train", "index": 3}


def test_a_limit_takes_the_first_rows_and_a_seed_random_ones(make_data, make_row):
    data = make_data(3000)
    assert [question.row for question in load_questions(data, limit=3)] == [0, 1, 2]
    drawn = [question.row for question in load_questions(data, limit=40, sample_seed=5)]
    assert drawn == sorted(drawn)
    assert len(set(drawn)) == 40
    assert max(drawn) > 1000
    assert drawn == [question.row for question in load_questions(data, limit=40, sample_seed=5)]
    assert drawn != [question.row for question in load_questions(data, limit=40, sample_seed=6)]


def test_a_limit_beyond_the_file_is_the_file(make_data, make_row):
    assert len(load_questions(make_data(3), limit=100)) == 3


def test_several_messages_are_shown_with_their_roles(make_data, make_row):
    prompt = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    assert load_questions(make_data(rows=[make_row(0, prompt=prompt)]))[0].text == "[system]\nBe brief.\n\n[user]\nHi"


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


@pytest.mark.parametrize(
    "reward_model", [{"style": "rule", "ground_truth": ""}, {"style": "rule", "ground_truth": None}, None]
)
def test_a_row_without_a_gold_answer_is_named(make_data, make_row, reward_model):
    with pytest.raises(RecipeError, match="no gold answer") as found:
        load_questions(make_data(rows=[make_row(0), make_row(1, reward_model=reward_model)]))
    assert "row 1" in found.value.where


def test_rows_beyond_the_limit_are_not_judged(make_data, make_row):
    data = make_data(rows=[make_row(0), make_row(1, reward_model=None)])
    assert len(load_questions(data, limit=1)) == 1


@pytest.fixture
def pictures(make_data, make_row):
    """Rows with two images, one and none, whose bytes name them."""
    prompts = ["<image> or <image>?", "What is on <image>?", "Nothing to see"]
    rows = [
        make_row(
            number,
            prompt=[{"role": "user", "content": prompt}],
            images=[{"bytes": f"{number}.{place}".encode()} for place in range(prompt.count("<image>"))],
        )
        for number, prompt in enumerate(prompts)
    ]
    return make_data(rows=rows)


def test_images_are_read_when_they_are_needed(pictures):
    questions = load_questions(pictures)
    assert [question.image_count for question in questions] == [2, 1, 0]
    assert not any(question.images for question in questions), "they stay in the file"
    read = {question.row: question.images for question in with_images(pictures, questions[1:])}
    assert read == {1: (b"1.0",), 2: ()}
    assert has_images(pictures)


def test_the_mark_of_an_image_is_text_where_rows_have_none(make_data, make_row):
    data = make_data(rows=[make_row(0, prompt=[{"role": "user", "content": "What does <image> mean in HTML?"}])])
    questions = load_questions(data)
    assert questions[0].image_count == 0
    assert list(with_images(data, questions)) == questions


def test_a_prompt_whose_images_are_missing_is_named(make_data, make_row):
    prompt = [{"role": "user", "content": "<image>?"}]
    data = make_data(rows=[make_row(0, prompt=prompt, images=[{"bytes": b"x"}]), make_row(1, prompt=prompt, images=[])])
    with pytest.raises(RecipeError, match=r"has 1 <image> and the row 0 images") as error:
        list(with_images(data, load_questions(data)))
    assert "row 1" in error.value.where
