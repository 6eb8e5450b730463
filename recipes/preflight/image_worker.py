"""Counts tokens with a model's processor: reads a question on standard input, prints one answer. See `image_tokens`."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

from recipes.data.rows import IMAGE_MARK
from recipes.preflight.images import Pixels


def structured(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages as both engines hand them to the chat template: every `<image>` a part of its own."""
    return [{**message, "content": _parts(message["content"])} for message in messages]


def _parts(content: Any) -> Any:
    if not isinstance(content, str):
        return content
    pieces = re.split(f"({re.escape(IMAGE_MARK)})", content)
    return [{"type": "image"} if piece == IMAGE_MARK else {"type": "text", "text": piece} for piece in pieces if piece]


def count(question: dict[str, Any]) -> dict[str, Any]:
    """Tokens of each text, of each image size, and the pixels of a side that become one token."""
    from transformers import AutoProcessor

    processor = AutoProcessor.from_pretrained(question["model"], trust_remote_code=question["trust_remote_code"])
    reader = processor.image_processor
    factor = reader.patch_size * reader.merge_size
    pixels = Pixels(question["engine"], question["low"], question["high"])
    bounds = {"min_pixels": pixels.low, "max_pixels": pixels.high} if pixels.engine == "verl" else {}
    bounds = {name: value for name, value in bounds.items() if value is not None}
    images = []
    for size in question["sizes"]:
        width, height = pixels.before(tuple(size), factor)
        images.append(reader.get_number_of_image_patches(height, width, bounds) // reader.merge_size**2)
    text = []
    for messages in map(json.loads, question["texts"]):
        written = processor.apply_chat_template(structured(messages), add_generation_prompt=True, tokenize=False)
        tokens = processor.tokenizer(written, add_special_tokens=False)["input_ids"]
        # The template writes one token for each image, in whose place the processor puts the image's own.
        text.append(len(tokens) - sum(str(message["content"]).count(IMAGE_MARK) for message in messages))
    return {"factor": factor, "text": text, "images": images}


if __name__ == "__main__":
    print(json.dumps(count(json.load(sys.stdin))))
