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

# How Qwen2's tokenizer cuts text before BPE. transformers loads every Qwen2 model's tokenizer with this pattern,
# whatever its tokenizer.json says; so what it would cut differently is an added token, which is taken out before.
PIECES = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# The instruction, which is the same in every prompt, and the numbers to 99 with the blank before them and without.
ADDED = (INSTRUCTION, *(f"{blank}{number}" for blank in (" ", "") for number in range(100)))


def corpus() -> Iterator[str]:
    """The texts that the merges are learned from: every word of the templates, operators, the mark, roles."""
    for template in TEMPLATES:
        for text in (*template.questions, *template.sentences):
            yield re.sub(r"\{\w+\}", "", text)
    for word in (*NAMES, *ITEMS, *BOXES):
        yield f"{word} {word}"
    yield from ("So + - * / =", MARK, "user", "assistant", "system", "\n")


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Train the tokenizer: always the same one."""
    return train_tokenizer(corpus(), PIECES, ADDED)
