"""The chat template is rendered as transformers does, and what it lacks is reported."""

from __future__ import annotations

import json

import pytest

from recipes.errors import RecipeError
from recipes.preflight import model as chat_template

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
    ("change", "where"),
    [
        ({"template": None}, "chat_template.jinja"),
        ({"template": "{% for message in messages %}"}, "tokenizer_config.json"),
        ({"eos": None, "ids": ()}, "generation_config.json"),
    ],
)
def test_what_no_run_survives_is_an_error(make, folder, change, where):
    folder(**change)
    with pytest.raises(RecipeError) as caught:
        chat_template.check_chat_template(make())
    assert where in caught.value.where
    assert caught.value.fix


def test_a_template_that_marks_what_the_assistant_writes_is_rendered(make, folder):
    folder(CHATML.replace("{{ message.content }}", "{% generation %}{{ message.content }}{% endgeneration %}"))
    assert chat_template.check_chat_template(make()) == []
