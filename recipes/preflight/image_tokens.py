"""Tokens of prompts with images, by the model's own processor.

It imports torch, so it runs in a process of its own, for `recipes.preflight.images`.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from recipes.data.rows import IMAGE_MARK, structured
from recipes.preflight.child import answer_with

Size = tuple[int, int]  # width, height


class Kind(NamedTuple):
    """Everything that decides a prompt's tokens: its messages, as JSON, and the sizes of its images."""

    messages: str
    sizes: tuple[Size, ...]


@dataclass(frozen=True)
class Question:
    """Prompts to be counted.

    Attributes:
        model: a folder.
        low, high: data.min_pixels, data.max_pixels.
        limit: data.max_prompt_length.
    """

    model: str
    trust_remote_code: bool
    engine: str
    low: int | None
    high: int | None
    limit: int
    kinds: list[Kind]


@dataclass(frozen=True)
class Answer:
    """Tokens of every kind of prompt, the place of the longest, and the bound of pixels that would make it fit.

    There are no tokens for a processor that does not make them of patches, as that of another family than Qwen's.
    """

    tokens: list[int]
    longest: int
    bound: str = ""


class Counter:
    """Counts an image's tokens as an engine and the processor behind it make them.

    verl rounds to whole tokens first (`fetch_image`) and gives both bounds to the processor; EasyR1 scales into the
    bounds first and leaves the processor its own.
    """

    def __init__(self, processor: Any, engine: str) -> None:
        self._reader, self._engine = processor.image_processor, engine

    def __call__(self, size: Size, low: int | None, high: int | None) -> int:
        """Tokens of an image within bounds of pixels."""
        from qwen_vl_utils.vision_process import smart_resize

        width, height = size
        bounds = {}
        if self._engine == "verl":
            height, width = smart_resize(height, width, self._reader.patch_size * self._reader.merge_size)
            bounds = {"min_pixels": low, "max_pixels": high}
        else:
            for bound, sign in ((high, 1), (low, -1)):
                if bound is not None and (width * height - bound) * sign > 0:
                    scale = math.sqrt(bound / (width * height))
                    width, height = int(width * scale), int(height * scale)
        given = {name: pixels for name, pixels in bounds.items() if pixels is not None}
        return int(self._reader.get_number_of_image_patches(height, width, given) // self._reader.merge_size**2)

    @property
    def token_pixels(self) -> int:
        """Pixels that become one token."""
        return int((self._reader.patch_size * self._reader.merge_size) ** 2)


def count(question: Question) -> Answer:
    """Count the tokens of every kind of prompt."""
    from transformers import AutoProcessor

    kinds, low, high = question.kinds, question.low, question.high
    processor = AutoProcessor.from_pretrained(question.model, trust_remote_code=question.trust_remote_code)
    if not hasattr(processor.image_processor, "merge_size"):
        return Answer([], 0)
    of_image = Counter(processor, question.engine)
    text = {messages: _text_tokens(processor, messages) for messages in dict.fromkeys(kind.messages for kind in kinds)}
    seen = {size: of_image(size, low, high) for kind in kinds for size in kind.sizes}
    tokens = [text[kind.messages] + sum(seen[size] for size in kind.sizes) for kind in kinds]
    longest = max(range(len(kinds)), key=tokens.__getitem__)
    messages, sizes = kinds[longest]
    answer = Answer(tokens, longest)
    room = (question.limit - text[messages]) // len(sizes) if sizes else 0
    enlarged = low is not None and low > room * of_image.token_pixels
    for pixels in range(room * of_image.token_pixels, 0, -of_image.token_pixels):
        bounds = (pixels, high) if enlarged else (low, pixels)
        if all(of_image(size, *bounds) <= room for size in sizes):
            return replace(answer, bound=f"{'MIN' if enlarged else 'MAX'}_PIXELS={pixels}")
    return answer


def _text_tokens(processor: Any, messages: str) -> int:
    """Tokens of the messages in the chat's format, images left out."""
    chat = json.loads(messages)
    written = processor.apply_chat_template(structured(chat), add_generation_prompt=True, tokenize=False)
    tokens = processor.tokenizer(written, add_special_tokens=False)["input_ids"]
    # The template writes one token for each image, in whose place the processor puts the image's own.
    return len(tokens) - sum(str(message["content"]).count(IMAGE_MARK) for message in chat)


def main() -> None:
    """Answer `recipes.preflight.images`."""
    answer_with(count, Question)
