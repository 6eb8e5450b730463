"""The tiny model's tokenizer: byte-level BPE in which each clause of the fixed question is one token."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from recipes.tasks.number_game.prompt import QUESTION
from recipes.tasks.pretrain.tokenizer import SPECIAL as CHAT
from recipes.tasks.pretrain.tokenizer import train_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

IMAGE, VIDEO = "<|image_pad|>", "<|video_pad|>"
VISION_START, VISION_END = "<|vision_start|>", "<|vision_end|>"
SPECIAL = (*CHAT, VISION_START, VISION_END, "<|vision_pad|>", IMAGE, VIDEO)
"""Qwen2.5-VL's own names; verl and vLLM look some of them up."""

# Qwen's chat format, where an image stands between marks. Unlike Qwen2.5's it adds no system message.
CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\\n' }}"
    "{%- if message.content is string %}{{- message.content }}"
    "{%- else %}{%- for part in message.content %}"
    "{%- if part.type == 'image' or 'image' in part or 'image_url' in part %}"
    "{{- '<|vision_start|><|image_pad|><|vision_end|>' }}"
    "{%- elif part.type == 'video' or 'video' in part %}"
    "{{- '<|vision_start|><|video_pad|><|vision_end|>' }}"
    "{%- elif 'text' in part %}{{- part.text }}{%- endif %}"
    "{%- endfor %}{%- endif %}"
    "{{- '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)

# What is cut out before BPE: digits one by one, marks with the blank behind them, blanks, line breaks. What lies
# between is one piece, so that a whole clause becomes one token.
PIECES = r"[0-9]|[.:,?] ?|\n"


def build_tokenizer(phrases: Iterator[str]) -> PreTrainedTokenizerFast:
    """Train the tokenizer (milliseconds, no randomness).

    All 256 bytes are in the vocabulary, so that any text can be encoded and comes back unchanged.

    Args:
        phrases: texts beside the question whose pieces are to be one token each.
    """
    corpus = [QUESTION, "user", "assistant", "system", *phrases]
    return train_tokenizer(corpus, PIECES, special=SPECIAL, chat_template=CHAT_TEMPLATE, max_length=2048)
