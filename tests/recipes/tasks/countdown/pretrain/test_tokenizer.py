"""The tiny tokenizer: any text survives, the prompt is short, the chat format is Qwen's."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from recipes.tasks.countdown.pretrain.batches import chat_texts
from recipes.tasks.countdown.pretrain.publish import TINY
from recipes.tasks.countdown.pretrain.tokenizer import TAGS, build_tokenizer
from recipes.tasks.countdown.prompt import gold_response, prompt

TOKENIZER = build_tokenizer()


def ids(text: str) -> list[int]:
    return TOKENIZER(text, add_special_tokens=False)["input_ids"]


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=60))
def test_any_text_comes_back(text):
    assert TOKENIZER.decode(ids(text)) == text


def test_ascii_and_the_task_s_own_texts_come_back():
    ascii_text = "".join(map(chr, range(128)))
    for text in (ascii_text, prompt([3, 8, 11], 24), gold_response("(8 - 3) * 4", "8 - 3 = 5\n144 / 12 = 12")):
        assert TOKENIZER.decode(ids(text), skip_special_tokens=True) == text


def test_what_a_response_is_made_of_is_one_token_each():
    for piece in (*map(str, range(100)), *TAGS, " + ", " - ", " * ", " / ", " = ", "(", ")", "\n"):
        assert len(ids(piece)) == 1, piece


def test_every_prompt_has_the_same_37_tokens_of_length():
    lengths = {len(ids(text)) for text in chat_texts(TOKENIZER, [prompt([n, 100 - n, 7], n) for n in range(1, 100)])}
    assert lengths == {37}


def test_chat_format_is_qwen_s():
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    assert TOKENIZER.apply_chat_template(chat, tokenize=False, add_generation_prompt=True) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    answered = [*chat, {"role": "assistant", "content": "Hello"}]
    assert TOKENIZER.apply_chat_template(answered, tokenize=False).endswith("<|im_start|>assistant\nHello<|im_end|>\n")


def test_special_tokens_disappear_and_tags_stay():
    assert TOKENIZER.decode(ids("<think>1</think><|im_end|><|endoftext|>"), skip_special_tokens=True) == (
        "<think>1</think>"
    )
    assert (TOKENIZER.eos_token, TOKENIZER.pad_token) == ("<|im_end|>", "<|endoftext|>")


def test_the_shipped_tokenizer_is_what_the_code_builds():
    shipped = json.loads((TINY / "tokenizer.json").read_text(encoding="utf-8"))
    assert shipped == json.loads(TOKENIZER.backend_tokenizer.to_str())
