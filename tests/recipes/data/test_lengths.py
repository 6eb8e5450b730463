"""Prompt lengths in tokens, and what a limit drops."""

from __future__ import annotations

import logging

import pytest

from recipes.data.lengths import Lengths, PromptCounter, print_lengths
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
    found = Lengths()
    assert list(PromptCounter(str(folder / "model")).over(rows(lengths), found)) == rows(lengths)
    assert sorted(found.counts.elements()) == sorted(lengths)
    assert (found.shortest, found.longest, found.over(40)) == (5, 200, 200)
    summary = found.summary(limit=40)
    assert summary["dropped_by_limit"] == 200
    assert (summary["min"], summary["median"], summary["max"]) == (5, 26.0, 200)
    assert sum(summary["histogram"].values()) == 600
    for span, count in summary["histogram"].items():
        low, high = map(int, span.split("-"))
        assert count == sum(low <= length <= high for length in lengths)
    print_lengths("train", summary)
    assert "a limit of 40 drops 200 rows" in capsys.readouterr().out


def test_wrong_tokenizers_are_named(folder):
    for path, message in ((folder / "nowhere", "not a tokenizer"), (folder / "bare", "no chat template")):
        with pytest.raises(RecipeError, match=message):
            PromptCounter(str(path))


def test_a_prompt_beyond_the_tokenizers_own_limit_is_counted_without_a_warning(folder, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    counter, found = PromptCounter(str(folder / "model")), Lengths()
    counter._tokenizer.model_max_length = 10
    list(counter.over(rows([11]), found))
    assert found.counts == {11: 1}
    assert not caplog.records
