"""The tiny model's tokenizer: it holds the fixed prompt, the operators and the numbers to 99."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from recipes.tasks.countdown.prompt import prompt
from recipes.tasks.pretrain.tokenizer import train_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# As the think tags are in Qwen3: no special tokens.
TAGS = ("<think>", "</think>", "<answer>", "</answer>")

# What is cut out before BPE: numbers (two digits at most), operators with their blanks, parentheses, line breaks. What
# lies between is one piece, blanks included, so that a whole clause of the fixed prompt becomes one token.
PIECES = r"[0-9]{1,2}| [-+*/=] |[()]|\n"


def corpus() -> Iterator[str]:
    """The texts that the merges are learned from: the prompt with every number from 1 to 99, roles, a calculation."""
    for number in range(1, 100):
        yield from re.split("|".join(TAGS), prompt([number] * 3, number))
    yield from ("user", "assistant", "system", "(1 + 2) * 3 - 4 / 5 = 2\n")


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Train the tokenizer: always the same one."""
    return train_tokenizer(corpus(), PIECES, TAGS)
