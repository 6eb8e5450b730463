"""The tiny model's tokenizer: a token for each word of the templates, and for each number to 99."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from recipes.tasks.gsm8k.prompt import INSTRUCTION, MARK
from recipes.tasks.gsm8k.templates import BOXES, ITEMS, NAMES, TEMPLATES
from recipes.tasks.pretrain.tokenizer import train_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# What is cut out before BPE, in this order: the instruction, which is the same in every prompt and becomes one token;
# words, numbers (two digits at most) and operators with the blank before them; the mark; line breaks.
PIECES = rf"{re.escape(INSTRUCTION)}| ?[A-Za-z]+| ?[0-9]{{1,2}}| [-+*/=]|{MARK}|\n"


def corpus() -> Iterator[str]:
    """The texts that the merges are learned from: every word of the templates, numbers, operators, roles."""
    for template in TEMPLATES:
        for text in (*template.questions, *template.sentences):
            yield re.sub(r"\{\w+\}", "", text)
    for word in (*NAMES, *ITEMS, *BOXES):
        yield f"{word} {word}"
    for number in range(100):
        yield f"{number} {number}"
    yield from ("So + - * / =", MARK, INSTRUCTION, "user", "assistant", "system", "\n")


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Train the tokenizer: always the same one."""
    return train_tokenizer(corpus(), PIECES)
