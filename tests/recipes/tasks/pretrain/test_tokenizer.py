"""The tiny tokenizers: any text survives, prompts are short, the chat format is Qwen's."""

from __future__ import annotations

import json
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipes.tasks.countdown.data import gold_response, prompt
from recipes.tasks.countdown.pretraining import COUNTDOWN, TAGS
from recipes.tasks.gsm8k.pretraining import GSM8K, Annotators
from recipes.tasks.gsm8k.problems import TINY
from recipes.tasks.pretrain import chat_texts

TOKENIZERS = {task.name: task.build_tokenizer() for task in (COUNTDOWN, GSM8K)}
each = pytest.mark.parametrize("name", TOKENIZERS)


def ids(name: str, text: str) -> list[int]:
    return TOKENIZERS[name](text, add_special_tokens=False)["input_ids"]


@each
@settings(max_examples=60, deadline=None)
@given(text=st.text(max_size=60))
def test_any_text_comes_back(name, text):
    assert TOKENIZERS[name].decode(ids(name, text)) == text


@each
def test_ascii_and_the_tasks_own_texts_come_back(name):
    ascii_text = "".join(map(chr, range(128)))
    word_problem = next(GSM8K.examples(Annotators(), TINY, 0, 1))
    own = (prompt([3, 8, 11], 24), gold_response("(8 - 3) * 4", "8 - 3 = 5\n144 / 12 = 12"))
    for text in (ascii_text, *own, word_problem.prompt, word_problem.response):
        assert TOKENIZERS[name].decode(ids(name, text), skip_special_tokens=True) == text


def test_what_a_response_is_made_of_is_one_token_each():
    for piece in (*map(str, range(100)), *TAGS, " + ", " - ", " * ", " / ", " = ", "(", ")", "\n"):
        assert len(ids("countdown", piece)) == 1, piece
    for piece in (*(f" {number}" for number in range(100)), " +", " -", " *", " /", " =", "####", "\n", "So", "."):
        assert len(ids("gsm8k", piece)) == 1, piece


def test_every_countdown_prompt_has_the_same_37_tokens_of_length():
    prompts = [prompt([n, 100 - n, 7], n) for n in range(1, 100)]
    assert {len(ids("countdown", text)) for text in chat_texts(TOKENIZERS["countdown"], prompts)} == {37}


def test_word_problems_are_as_long_as_they_have_words():
    tokenizer = TOKENIZERS["gsm8k"]
    for example in islice(GSM8K.examples(Annotators(), TINY, 0, 500), 500):
        question = example.prompt.splitlines()[0]
        pieces = len(question.split()) + question.count(".") + question.count(",") + question.count("?")
        assert len(ids("gsm8k", chat_texts(tokenizer, [example.prompt])[0])) == pieces + 10
        assert 11 <= len(ids("gsm8k", example.response)) + 1 <= GSM8K.response


@each
def test_chat_format_is_qwen_s(name):
    tokenizer = TOKENIZERS[name]
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    assert tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    answered = [*chat, {"role": "assistant", "content": "Hello"}]
    assert tokenizer.apply_chat_template(answered, tokenize=False).endswith("<|im_start|>assistant\nHello<|im_end|>\n")


def test_special_tokens_disappear_and_tags_stay():
    tokenizer = TOKENIZERS["countdown"]
    found = ids("countdown", "<think>1</think><|im_end|><|endoftext|>")
    assert tokenizer.decode(found, skip_special_tokens=True) == "<think>1</think>"
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|endoftext|>")


@pytest.mark.parametrize("task", [COUNTDOWN, GSM8K], ids=lambda task: task.name)
def test_the_shipped_tokenizer_is_what_the_code_builds(task):
    shipped = json.loads((task.tiny / "tokenizer.json").read_text(encoding="utf-8"))
    assert shipped == json.loads(TOKENIZERS[task.name].backend_tokenizer.to_str())
