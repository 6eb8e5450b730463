"""Prompt lengths in tokens, and what a limit drops."""

from transformers import AutoTokenizer

from recipes.data.lengths import count_split
from recipes.data.rows import make_row, write_split
from recipes.paths import ROOT
from tests.mistakes import mistake

MODEL = str(ROOT / "recipes" / "tasks" / "countdown" / "tiny")


def test_a_split_is_counted_once_with_the_chat_template(tmp_path, monkeypatch):
    path, fixed = tmp_path / "train.parquet", {"data_source": "x", "ground_truth": "1", "ability": "x"}
    extra = [{"split": "train", "index": index} for index in range(300)]
    rows = [make_row(prompt="Make 7? " * (each["index"] % 30 + 1), extra_info=each, **fixed) for each in extra]
    write_split(path, rows)
    chats, tokenizer = [row["prompt"] for row in rows], AutoTokenizer.from_pretrained(MODEL)
    lengths = [len(tokenizer.apply_chat_template(c, add_generation_prompt=True, return_dict=False)) for c in chats]
    counted = count_split(path, MODEL)
    assert sorted(counted.elements()) == sorted(lengths)
    with monkeypatch.context() as patch:
        patch.setattr("recipes.data.lengths.chat_tokenizer", None)
        assert count_split(path, MODEL) == counted
    tokenizer.backend_tokenizer.enable_truncation(8)  # as some published files have it; prompts are never cut
    tokenizer.backend_tokenizer.enable_padding(length=2000)
    tokenizer.save_pretrained(tmp_path / "cutting")
    assert count_split(path, str(tmp_path / "cutting")) == counted
    tokenizer.__class__ = type("Own", (type(tokenizer),), {"_encode_plus": lambda *_, **k: {"input_ids": [[0] * 5]}})
    with monkeypatch.context() as patch:
        patch.setattr("recipes.data.lengths.chat_tokenizer", lambda *_, **named: tokenizer)
        assert {*count_split(path, MODEL, tokenizer.chat_template)} == {5}
    template = "{% for m in messages %}{{ m.content }} {% endfor %}"
    assert max(count_split(path, MODEL, template)) < max(counted)
    refuses = "{% if messages[0].content.startswith('no') %}{{ raise_exception('no') }}{% endif %}"
    write_split(path, [*rows, make_row(prompt="no", extra_info=extra[0], **fixed)])
    assert "between rows 256 and 300" in mistake(lambda: count_split(path, MODEL, refuses), "refuses").where
    write_split(path, rows[:3])
    assert count_split(path, MODEL).total() == 3
