"""The chat template is rendered as transformers does, and what it lacks is reported."""

from __future__ import annotations

import json

import pytest

from recipes.errors import RecipeError
from recipes.paths import ROOT
from recipes.preflight import chat_template

CHATML = (
    "{%- for message in messages %}\n<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{%- endfor %}\n"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture
def folder(files):
    def write(template=CHATML, eos="<|im_end|>", ids=(7,)):
        model = files / "model"
        added = [{"id": 7, "content": "<|im_end|>"}, {"id": 8, "content": "<|endoftext|>"}]
        (model / "tokenizer.json").write_text(json.dumps({"added_tokens": added}))
        config = {"chat_template": template, "eos_token": {"content": eos} if eos else None}
        (model / "tokenizer_config.json").write_text(json.dumps({k: v for k, v in config.items() if v}))
        (model / "generation_config.json").write_text(json.dumps({"eos_token_id": list(ids)}))

    return write


def test_what_the_model_would_not_understand_is_remarked(make, folder):
    for fine in ({}, {"eos": "<|endoftext|>", "ids": (8, 7)}):
        folder(**fine)
        assert chat_template.check_chat_template(make()) == []
    folder(eos="<|endoftext|>", ids=(8,))
    (remark,) = chat_template.check_chat_template(make())
    assert "'<|im_end|>', which is no stop token" in remark


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"template": None}, "no chat template"),
        ({"template": "{% for message in messages %}"}, "cannot be rendered"),
        ({"eos": None, "ids": ()}, "no token that ends a response"),
    ],
)
def test_what_no_run_survives_is_an_error(make, folder, change, message):
    folder(**change)
    with pytest.raises(RecipeError, match=message) as caught:
        chat_template.check_chat_template(make())
    assert caught.value.where
    assert caught.value.fix


def test_rendering_is_transformers_own():
    from transformers import AutoTokenizer

    folder = ROOT / "recipes" / "tasks" / "gsm8k" / "tiny"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "6 * 7?\n"}]
    given = {name: getattr(tokenizer, name) for name in ("bos_token", "eos_token", "pad_token")}
    for begins in (True, False):
        expected = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=begins)
        assert chat_template.render(tokenizer.chat_template, chat, begins, given) == expected
