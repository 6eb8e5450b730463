"""How many tokens prompts with images have: counted by the model's own processor, in a process of its own.

A processor needs torch, which the launcher itself must not load. Where the model is not on this machine yet, the images
are counted by the rule of Qwen2-VL's processor.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipes.errors import RecipeError
from recipes.paths import ROOT
from recipes.preflight.image_rows import Kind, Size

LIMIT_S = 600.0
QWEN2_VL = 28
"""Pixels of a side that become one token: patches of 14, merged two by two."""
FETCHED = (4, 16384)
"""Fewest and most tokens of an image as verl's reader (qwen_vl_utils) hands it to the processor."""


@dataclass(frozen=True)
class Pixels:
    """How an engine sizes an image before and in the processor.

    Attributes:
        engine: verl rounds to whole tokens first and gives both bounds to the processor; EasyR1 scales into the bounds
            first and leaves the processor its own.
        low, high: data.min_pixels and data.max_pixels; None where they are not set.
    """

    engine: str
    low: int | None
    high: int | None

    def before(self, size: Size, factor: int) -> Size:
        """The size that the processor is given."""
        if self.engine == "verl":
            return smart_resize(size, factor, FETCHED[0] * factor**2, FETCHED[1] * factor**2)
        for bound, beyond in ((self.high, 1), (self.low, -1)):
            area = size[0] * size[1]
            if bound is not None and (area - bound) * beyond > 0:
                scale = math.sqrt(bound / area)
                size = (int(size[0] * scale), int(size[1] * scale))
        return size

    def shown(self, size: Size, factor: int) -> Size:
        """The size that the model sees, by the rule of Qwen2-VL's processor."""
        inner = (self.low, self.high) if self.engine == "verl" else (None, None)
        return smart_resize(self.before(size, factor), factor, *inner)


def smart_resize(size: Size, factor: int, low: int | None, high: int | None) -> Size:
    """Qwen2-VL's rule: sides become multiples of `factor`, and the area lies within the bounds.

    Source: `smart_resize` of transformers' Qwen2VLImageProcessor. Raises ValueError for an image that is 200 times as
    long as it is wide, as the processor does.
    """
    width, height = size
    if max(size) > 200 * min(size):
        raise ValueError(f"an image of {width} x {height} is too narrow: one side may be 200 times the other")
    columns, lines = round(width / factor), round(height / factor)
    area = columns * lines * factor**2
    if high is not None and area > high:
        scale = math.sqrt(width * height / high) * factor
        columns, lines = max(1, math.floor(width / scale)), max(1, math.floor(height / scale))
    elif low is not None and area < low:
        scale = math.sqrt(low / (width * height)) / factor
        columns, lines = math.ceil(width * scale), math.ceil(height * scale)
    return columns * factor, lines * factor


@dataclass(frozen=True)
class Counted:
    """Tokens of the parts of prompts.

    Attributes:
        by: "processor", or "rule" where only the images are counted, by Qwen2-VL's rule.
        factor: pixels of a side that become one token.
        text: tokens of the messages in the chat's format, images left out; by their JSON.
        images: tokens of an image, by its size.
    """

    by: str
    factor: int
    text: dict[str, int]
    images: dict[Size, int]

    def total(self, kind: Kind) -> int:
        """Tokens of a prompt."""
        return self.text[kind.messages] + sum(self.images[size] for size in kind.sizes)


def by_rule(kinds: Collection[Kind], pixels: Pixels) -> Counted:
    """Images alone, counted without a processor. Raises ValueError for an image that is too narrow."""
    sizes = {size: pixels.shown(size, QWEN2_VL) for kind in kinds for size in kind.sizes}
    tokens = {size: shown[0] * shown[1] // QWEN2_VL**2 for size, shown in sizes.items()}
    return Counted("rule", QWEN2_VL, {kind.messages: 0 for kind in kinds}, tokens)


def by_processor(kinds: Collection[Kind], pixels: Pixels, model: Path, *, trust_remote_code: bool) -> Counted:
    """Text and images, counted by the processor in the model's folder.

    Raises:
        RecipeError: the processor cannot be loaded, or refuses an image.
    """
    texts = sorted({kind.messages for kind in kinds})
    sizes = sorted({size for kind in kinds for size in kind.sizes})
    question = {
        "model": str(model),
        "trust_remote_code": trust_remote_code,
        "engine": pixels.engine,
        "low": pixels.low,
        "high": pixels.high,
        "texts": texts,
        "sizes": sizes,
    }
    answer = _asked(question)
    return Counted(
        "processor",
        answer["factor"],
        dict(zip(texts, answer["text"], strict=True)),
        dict(zip(sizes, answer["images"], strict=True)),
    )


def _asked(question: dict[str, Any]) -> dict[str, Any]:
    """The worker's answer."""
    command = [sys.executable, "-m", "recipes.preflight.image_worker"]
    try:
        done = subprocess.run(
            command,
            input=json.dumps(question),
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise RecipeError(
            f"the processor took more than {LIMIT_S:.0f} s to count {len(question['texts']):,} prompts",
            where=question["model"],
        ) from error
    said = next((line for line in done.stdout.splitlines() if line.startswith('{"factor"')), None)
    if said is None:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise RecipeError(
            f"the model's processor cannot count image tokens: {last[0]}",
            where=question["model"],
            fix="is it a whole vision-language model? set MODEL_PATH to one",
        )
    return json.loads(said)
