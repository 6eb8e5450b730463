"""Prompt lengths in tokens, and what a limit drops."""

from __future__ import annotations

import logging

import pytest

from recipes.data.prepare import PromptLengths, print_lengths
from recipes.errors import RecipeError


@pytest.fixture
def folder(tmp_path):
    """A tokenizer that makes one token of each word, with two more for the roles."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>")
    made.save_pretrained(tmp_path / "bare")
    made.chat_template = "{% for m in messages %}{{ m.role }} {{ m.content }} {% endfor %}assistant"
    made.save_pretrained(tmp_path / "model")
    return tmp_path


def rows(lengths):
    return [{"prompt": [{"role": "user", "content": " ".join(["word"] * (length - 2))}]} for length in lengths]


def test_counts_tokens_with_the_chat_template(folder, capsys):
    lengths = [5, 12, 12, 40, 41, 200] * 100
    counter = PromptLengths(str(folder / "model"), limit=40)
    assert list(counter.over(rows(lengths))) == rows(lengths)
    assert counter.lengths == lengths
    summary = counter.summary()
    assert summary["dropped_by_limit"] == 200
    assert (summary["min"], summary["median"], summary["max"]) == (5, 26.0, 200)
    assert sum(summary["histogram"].values()) == 600
    for span, count in summary["histogram"].items():
        low, high = map(int, span.split("-"))
        assert count == sum(low <= length <= high for length in lengths)
    print_lengths("train", summary)
    assert "a limit of 40 drops 200 rows" in capsys.readouterr().out


def test_wrong_tokenizers_and_limits_are_named(folder):
    for path, limit, message in (
        (folder / "nowhere", 9, "not a tokenizer"),
        (folder / "bare", 9, "no chat template"),
        (folder / "model", 0, "limit of 0"),
    ):
        with pytest.raises(RecipeError, match=message):
            PromptLengths(str(path), limit)


def test_a_prompt_beyond_the_tokenizers_own_limit_is_counted_without_a_warning(folder, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    counter = PromptLengths(str(folder / "model"), limit=40)
    counter._tokenizer.model_max_length = 10
    list(counter.over(rows([11])))
    assert counter.lengths == [11]
    assert not caplog.records
