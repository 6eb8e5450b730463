"""Counts the tokens of prompts with images, as an engine and a model's processor make them.

It imports torch, so it runs in a process of its own, for `recipes.preflight.images`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from recipes.data.rows import IMAGE_MARK, structured
from recipes.preflight.child import answer_with

QWEN2_VL = 28
"""Pixels of a side that become one token: patches of 14, merged two by two."""

Size = tuple[int, int]  # width, height
Resize = Callable[[Size, int | None, int | None], Size]


def resizing(engine: str, factor: int, own: Size | None) -> Resize:
    """Return how an image becomes the one that the model sees: (size, min_pixels, max_pixels) -> size.

    Args:
        engine: verl rounds to whole tokens first (`fetch_image`) and gives both bounds to the processor; EasyR1 scales
            into the bounds first and leaves the processor its own.
        factor: pixels of a side that become one token.
        own: the processor's own bounds; None where there is no processor.
    """
    from qwen_vl_utils.vision_process import smart_resize

    def resize(size: Size, low: int | None, high: int | None) -> Size:
        width, height = size
        if engine == "verl":
            height, width = smart_resize(height, width, factor)
        else:
            for bound, sign in ((high, 1), (low, -1)):
                if bound is not None and (width * height - bound) * sign > 0:
                    scale = math.sqrt(bound / (width * height))
                    width, height = int(width * scale), int(height * scale)
            low = high = None
        smallest, largest = own or (None, None)
        height, width = smart_resize(
            height, width, factor, smallest if low is None else low, largest if high is None else high
        )
        return width, height

    return resize


class Kind(NamedTuple):
    """Everything that decides a prompt's tokens: its messages, as JSON, and the sizes of its images."""

    messages: str
    sizes: tuple[Size, ...]


@dataclass(frozen=True)
class Question:
    """What is to be counted.

    Attributes:
        model: a folder; None: images alone, by Qwen2-VL's rule.
        low, high: data.min_pixels, data.max_pixels.
        limit: data.max_prompt_length.
    """

    model: str | None
    trust_remote_code: bool
    engine: str
    low: int | None
    high: int | None
    limit: int
    kinds: list[Kind]


@dataclass(frozen=True)
class Answer:
    """Tokens of every kind of prompt.

    Attributes:
        longest: the place of the longest one.
        shown: size of each of its images as the model sees it.
        max_pixels, min_pixels: the one of both that would make it fit, if any.
    """

    tokens: list[int]
    longest: int
    shown: list[Size]
    max_pixels: int | None = None
    min_pixels: int | None = None


def count(question: Question) -> Answer:
    """Count the tokens of every kind of prompt."""
    kinds = question.kinds
    factor, own, text = QWEN2_VL, None, dict.fromkeys((kind.messages for kind in kinds), 0)
    if question.model:
        from transformers import AutoProcessor

        processor = AutoProcessor.from_pretrained(question.model, trust_remote_code=question.trust_remote_code)
        reader = processor.image_processor
        factor = reader.patch_size * reader.merge_size
        own = (reader.size["shortest_edge"], reader.size["longest_edge"])
        text = {messages: _text_tokens(processor, json.loads(messages)) for messages in text}
    resize, low, high = resizing(question.engine, factor, own), question.low, question.high
    shown = {size: resize(size, low, high) for _, sizes in kinds for size in sizes}
    tokens = [text[messages] + _tokens((shown[size] for size in sizes), factor) for messages, sizes in kinds]
    longest = max(range(len(kinds)), key=tokens.__getitem__)
    messages, sizes = kinds[longest]
    answer = Answer(tokens, longest, [shown[size] for size in sizes])
    room = (question.limit - text[messages]) // len(sizes) if sizes else 0
    enlarged = low is not None and low > room * factor**2
    for pixels in range(room * factor**2, 0, -(factor**2)):
        bounds = (pixels, high) if enlarged else (low, pixels)
        if all(_tokens([resize(size, *bounds)], factor) <= room for size in sizes):
            return replace(answer, min_pixels=pixels) if enlarged else replace(answer, max_pixels=pixels)
    return answer


def _text_tokens(processor: Any, messages: list[dict[str, Any]]) -> int:
    """Tokens of the messages in the chat's format, images left out."""
    written = processor.apply_chat_template(structured(messages), add_generation_prompt=True, tokenize=False)
    tokens = processor.tokenizer(written, add_special_tokens=False)["input_ids"]
    # The template writes one token for each image, in whose place the processor puts the image's own.
    return len(tokens) - sum(str(message["content"]).count(IMAGE_MARK) for message in messages)


def _tokens(sizes: Iterable[Size], factor: int) -> int:
    return sum(width * height for width, height in sizes) // factor**2


def main() -> None:
    """Answer `recipes.preflight.images`."""
    answer_with(count, Question)
