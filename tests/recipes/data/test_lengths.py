"""Prompt lengths in tokens, and what a limit drops."""

from __future__ import annotations

import pytest

from recipes.data.lengths import count_split
from recipes.data.rows import make_row, write_split


@pytest.fixture
def folder(tmp_path):
    """A tokenizer that makes one token of each word, with two more for the roles."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>")
    made.chat_template = "{% for m in messages %}{{ m.role }} {{ m.content }} {% endfor %}assistant"
    made.save_pretrained(tmp_path / "model")
    return tmp_path


def split_of(path, lengths):
    """A split whose prompts have these lengths."""
    rows = (
        make_row(
            data_source="x",
            prompt=" ".join(["word"] * (length - 2)),
            ground_truth="1",
            ability="x",
            extra_info={"split": "train", "index": index},
        )
        for index, length in enumerate(lengths)
    )
    write_split(path, rows, manifest={}, force=True)
    return path


def test_a_split_is_counted_once_with_the_chat_template(folder, monkeypatch):
    lengths = [5, 12, 12, 40, 41, 200] * 100
    path, model = split_of(folder / "train.parquet", lengths), str(folder / "model")
    counted = count_split(path, model)
    assert sorted(counted.counts.elements()) == sorted(lengths)
    assert counted.described(40) == "prompts of 5 to 200 tokens; a limit of 40 drops 200"
    with monkeypatch.context() as patch:
        patch.setattr("recipes.data.lengths.PromptCounter", None)
        assert count_split(path, model) == counted
    template = "{% for m in messages %}{{ m.content }} {% endfor %}"
    assert count_split(path, model, template).longest == 198
    split_of(path, [7, 8, 9])
    assert count_split(path, model).longest == 9
