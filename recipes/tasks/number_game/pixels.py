"""Screenshots: decoding and checking PNGs, and scaling them to whole patches."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from recipes.tasks.number_game.rules import PATCH

if TYPE_CHECKING:
    from PIL.Image import Image

SIGNATURE, END = b"\x89PNG\r\n\x1a\n", b"IEND\xaeB`\x82"


class BrokenPNG(Exception):
    """The bytes are no PNG, or not a whole one."""


def decoded(data: bytes) -> Image:
    """The picture of a PNG, decoded to its last pixel.

    Raises:
        BrokenPNG: the bytes are empty, no PNG, cut short or damaged.
    """
    import PIL.Image

    if not data.startswith(SIGNATURE):
        raise BrokenPNG(f"{len(data)} bytes that begin with {data[:8]!r} are no PNG")
    if END not in data[-256:]:  # Pillow accepts pictures whose last bytes are missing
        raise BrokenPNG(f"a PNG of {len(data)} bytes is cut short")
    try:
        picture = PIL.Image.open(io.BytesIO(data), formats=("PNG",))
        picture.load()
    except (OSError, SyntaxError, ValueError) as error:
        raise BrokenPNG(f"a PNG of {len(data)} bytes is broken: {error}") from error
    return picture


def size(data: bytes) -> tuple[int, int]:
    """Width and height from a PNG's header."""
    return int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")


def as_png(data: bytes) -> bytes:
    """A JPEG, WebP or BMP as PNG; bytes that begin as a PNG are returned unchanged and unchecked.

    Raises:
        BrokenPNG: the picture cannot be read.
    """
    import PIL.Image

    if data.startswith(SIGNATURE):
        return data
    try:
        return _encoded(PIL.Image.open(io.BytesIO(data), formats=("JPEG", "WEBP", "BMP")).convert("RGB"))
    except (OSError, SyntaxError, ValueError) as error:
        raise BrokenPNG(f"{len(data)} bytes are no picture: {error}") from error


def fitted(data: bytes, tokens: int) -> bytes:
    """A PNG whose sides are multiples of 28 and which takes at most `tokens` tokens; unchanged if it is so already.

    A larger screenshot is scaled down; its aspect ratio is kept up to rounding to whole patches.
    """
    import PIL.Image

    picture = decoded(data)
    scale = min(1.0, (tokens * PATCH * PATCH / (picture.width * picture.height)) ** 0.5)
    columns, lines = (max(1, round(side * scale / PATCH)) for side in picture.size)
    while columns * lines > tokens:
        columns, lines = (columns - 1, lines) if columns > lines else (columns, lines - 1)
    target = columns * PATCH, lines * PATCH
    if picture.size == target:
        return data
    return _encoded(picture.convert("RGB").resize(target, PIL.Image.Resampling.LANCZOS))


def _encoded(picture: Image) -> bytes:
    out = io.BytesIO()
    picture.save(out, format="PNG")
    return out.getvalue()
