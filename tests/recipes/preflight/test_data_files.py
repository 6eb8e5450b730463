"""Rows that cannot be trained on are found before the trainer starts."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from recipes.errors import RecipeError
from recipes.preflight import data_files

from .conftest import write_rows


def change(path, column, values=None):
    """Drop a column of a file, or give it one value in every row."""
    table = pq.read_table(path).drop_columns([column])
    if values is not None:
        table = table.append_column(column, pa.array([values] * table.num_rows))
    pq.write_table(table, path)


@pytest.mark.parametrize(
    ("damage", "engine", "named"),
    [
        (lambda path: path.unlink(), "verl", "test.parquet"),
        (lambda path: path.write_bytes(b"PAR1 not really"), "verl", "test.parquet"),
        (lambda path: change(path, "prompt"), "verl", "prompt"),
        (lambda path: change(path, "reward_model", {"style": "rule"}), "verl", "reward_model.ground_truth"),
        (lambda path: change(path, "answer"), "easyr1", "answer"),
        (lambda path: pq.write_table(pq.read_table(path).slice(0, 0), path), "verl", "test.parquet"),
    ],
)
def test_a_file_that_cannot_be_trained_on(make, files, damage, engine, named):
    recipe = make().model_copy(update={"engine": engine})
    assert data_files.check_data(recipe) == []
    damage(files / "test.parquet")
    with pytest.raises(RecipeError, match=named) as caught:
        data_files.check_data(recipe)
    assert "data.val_files" in caught.value.where
    assert caught.value.fix
    assert "make it" not in caught.value.fix, "the recipe's own file is another one"


def test_a_batch_larger_than_the_data(make):
    with pytest.raises(RecipeError, match="data.rollout_batch_size") as caught:
        data_files.check_data(make("data.rollout_batch_size=32", "worker.actor.global_batch_size=32"))
    assert "ROLLOUT_BATCH_SIZE to 16" in caught.value.fix


def test_prompts_that_are_too_long(make, files):
    tokenizer = Tokenizer(models.WordLevel({"word": 0, "[UNK]": 1}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(files / "model" / "tokenizer.json"))
    recipe = make("data.max_prompt_length=32")
    write_rows(files / "long.parquet", 2, prompt="word " * 40)
    write_rows(files / "short.parquet", 14, prompt="word")
    tables = [pq.read_table(files / name) for name in ("long.parquet", "short.parquet")]
    pq.write_table(pa.concat_tables(tables), files / "train.parquet")
    with pytest.raises(RecipeError, match="data.max_prompt_length"):
        data_files.check_data(recipe)
    (remark,) = data_files.check_data(make("data.max_prompt_length=32", "data.filter_overlong_prompts=true"))
    assert remark.startswith("2 of the first 16 ")
    write_rows(files / "train.parquet", prompt="word " * 40)
    with pytest.raises(RecipeError, match="data.max_prompt_length") as caught:
        data_files.check_data(recipe)
    assert "MAX_PROMPT_LENGTH to 104" in caught.value.fix
    config = files / "model" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"max_position_embeddings": 512}))
    write_rows(files / "train.parquet", prompt="word " * 4000)
    with pytest.raises(RecipeError, match="data.max_prompt_length") as caught:
        data_files.check_data(recipe)
    assert "shorten the prompts, or take a model with more than" in caught.value.fix
