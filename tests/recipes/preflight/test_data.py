"""Rows that cannot be trained on are found before the trainer starts."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from recipes.errors import RecipeError
from recipes.preflight import data

from .conftest import write_rows


def test_good_files_pass(make):
    recipe = make()
    assert data.check_data(recipe) == []
    assert data.rows(recipe) == 16
    assert len(data.sample(recipe, 3)) == 3


def test_a_missing_file_names_its_key_and_how_to_make_it(make, files):
    (files / "test.parquet").unlink()
    with pytest.raises(RecipeError, match=r"test\.parquet does not exist") as caught:
        data.check_data(make())
    assert "data.val_files" in caught.value.where
    assert "data_prep_countdown.py" in caught.value.fix


def test_a_file_that_is_no_parquet(make, files):
    (files / "train.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(RecipeError, match="cannot be read as parquet"):
        data.check_data(make())


def test_a_file_cut_short(make, files):
    whole = (files / "train.parquet").read_bytes()
    (files / "train.parquet").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(RecipeError, match="cannot be read as parquet"):
        data.check_data(make())


@pytest.mark.parametrize("column", ["prompt", "data_source", "reward_model"])
def test_a_missing_column_is_named(make, files, column):
    table = pq.read_table(files / "train.parquet")
    pq.write_table(table.drop_columns([column]), files / "train.parquet")
    with pytest.raises(RecipeError, match=f"lacks {column}"):
        data.check_data(make())


def test_a_struct_without_the_ground_truth(make, files):
    table = pq.read_table(files / "train.parquet").drop_columns(["reward_model"])
    table = table.append_column("reward_model", pa.array([{"style": "rule"}] * table.num_rows))
    pq.write_table(table, files / "train.parquet")
    with pytest.raises(RecipeError, match=r"lacks reward_model\.ground_truth"):
        data.check_data(make())


def test_easyr1_reads_other_columns(make, files):
    recipe = make().model_copy(update={"engine": "easyr1"})
    assert data.check_data(recipe) == []
    table = pq.read_table(files / "train.parquet")
    pq.write_table(table.drop_columns(["answer"]), files / "train.parquet")
    with pytest.raises(RecipeError, match="lacks answer"):
        data.check_data(recipe)


def test_an_empty_split(make, files):
    table = pq.read_table(files / "test.parquet")
    pq.write_table(table.slice(0, 0), files / "test.parquet")
    with pytest.raises(RecipeError, match="has no rows") as caught:
        data.check_data(make())
    assert "data.val_files" in caught.value.where


def test_a_batch_larger_than_the_data(make):
    with pytest.raises(RecipeError, match="32 is larger than the 16 training rows") as caught:
        data.check_data(make("data.rollout_batch_size=32", "worker.actor.global_batch_size=32"))
    assert "ROLLOUT_BATCH_SIZE to 16" in caught.value.fix
    with pytest.raises(RecipeError, match="larger than the 4 training rows"):
        data.check_data(make("data.train_max_samples=4"))


def word_tokenizer(files):
    tokenizer = Tokenizer(models.WordLevel({"word": 0, "[UNK]": 1}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(files / "model" / "tokenizer.json"))


def test_prompts_that_are_all_too_long(make, files):
    word_tokenizer(files)
    write_rows(files / "train.parquet", prompt="word " * 40)
    with pytest.raises(RecipeError, match=r"every prompt is longer than data\.max_prompt_length 32") as caught:
        data.check_data(make("data.max_prompt_length=32"))
    assert "MAX_PROMPT_LENGTH to 104" in caught.value.fix


def test_some_prompts_that_are_too_long_are_remarked(make, files):
    word_tokenizer(files)
    write_rows(files / "long.parquet", 2, prompt="word " * 40)
    write_rows(files / "short.parquet", 14, prompt="word")
    tables = [pq.read_table(files / name) for name in ("long.parquet", "short.parquet")]
    pq.write_table(pa.concat_tables(tables), files / "train.parquet")
    (remark,) = data.check_data(make("data.max_prompt_length=32"))
    assert remark.startswith("2 of the first 16 prompts are longer")
    assert "dropped" in remark
