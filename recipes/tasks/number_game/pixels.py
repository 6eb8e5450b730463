"""Reading of screenshots: whole or broken, their tokens, and the places of cards and button."""

from __future__ import annotations

import io
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from recipes.errors import RecipeError
from recipes.tasks.number_game.rules import PATCH

if TYPE_CHECKING:
    from PIL.Image import Image

STYLE = Path(__file__).with_name("web") / "style.css"
SIGNATURE, END = b"\x89PNG\r\n\x1a\n", b"IEND\xaeB`\x82"
TOLERANCE = 6  # of a channel's 255: screens with colour management shift colours a little
NARROWEST_CARD, NARROWEST_BUTTON = 0.12, 0.2  # as shares of the screenshot's shorter side
ALIGNMENT = 4  # pixels by which a scaled screen may round the places of cards in one row


class BrokenPNG(Exception):
    """The bytes are no PNG, or not a whole one."""


class Box(NamedTuple):
    """A rectangle in pixels; right and bottom are outside."""

    left: int
    top: int
    right: int
    bottom: int

    @property
    def width(self) -> int:
        """In pixels."""
        return self.right - self.left

    @property
    def height(self) -> int:
        """In pixels."""
        return self.bottom - self.top

    @property
    def centre(self) -> tuple[int, int]:
        """x and y of the middle, where a finger taps."""
        return (self.left + self.right) // 2, (self.top + self.bottom) // 2


class Colours(NamedTuple):
    """Colours of a theme's cards and buttons, as (red, green, blue)."""

    face: tuple[int, int, int]
    button: tuple[int, int, int]
    right: tuple[int, int, int]
    wrong: tuple[int, int, int]


def decoded(data: bytes) -> Image:
    """The picture of a PNG, decoded to its last pixel.

    Raises:
        BrokenPNG: nothing, something else, or cut short.
    """
    import PIL.Image

    if not data.startswith(SIGNATURE):
        raise BrokenPNG(f"{len(data)} bytes that begin with {data[:8]!r} are no PNG")
    if END not in data[-256:]:  # Pillow takes pictures whose last bytes are missing
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
    """A PNG of a picture in any common format; a PNG as it is.

    Raises:
        BrokenPNG: it cannot be read.
    """
    import PIL.Image

    if data.startswith(SIGNATURE):
        return data
    try:
        return _encoded(PIL.Image.open(io.BytesIO(data), formats=("JPEG", "WEBP", "BMP")).convert("RGB"))
    except (OSError, SyntaxError, ValueError) as error:
        raise BrokenPNG(f"{len(data)} bytes are no picture: {error}") from error


def fitted(data: bytes, tokens: int) -> bytes:
    """A PNG whose sides are multiples of 28 and which takes at most `tokens` tokens; the same bytes where it does.

    A device's screenshot is scaled down with its proportions, but for rounding to whole patches.
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


@cache
def colours(theme: str) -> Colours:
    """A theme's colours, from the page's own style sheet."""
    text = STYLE.read_text(encoding="utf-8")
    rule = r"^body \{" if theme == "paper" else rf'^\[data-theme="{theme}"\] \{{'
    block = re.search(rule + r"(.*?)\}", text, re.DOTALL | re.MULTILINE)
    if block is None:
        raise RecipeError(f"the page has no theme {theme!r}", where=str(STYLE), fix="choose one of its themes")

    def colour(pattern: str, where: str) -> tuple[int, int, int]:
        red, green, blue = bytes.fromhex(re.findall(pattern + r" #(\w{6})", where)[0])
        return red, green, blue

    return Colours(
        face=colour("--face:", block[1]),
        button=colour("--button:", block[1]),
        right=colour(r"\.card\.right \{ background:", text),
        wrong=colour(r"\.card\.wrong \{ background:", text),
    )


def find_cards(picture: Image, theme: str) -> list[Box] | None:
    """The three cards from left to right, none of them chosen yet; None where they are not to be seen."""
    boxes = _areas(picture, colours(theme).face, NARROWEST_CARD)
    for box in boxes:
        row = [other for other in boxes if _in_one_row(box, other)]
        if len(row) == 3:
            return sorted(row)
    return None


def find_button(picture: Image, theme: str) -> Box | None:
    """The button that leads on, the largest area of its colour; None where it is not to be seen."""
    boxes = [box for box in _areas(picture, colours(theme).button, NARROWEST_BUTTON) if box.width > 2 * box.height]
    return max(boxes, key=lambda box: box.width * box.height, default=None)


def verdict(picture: Image, card: Box, theme: str) -> str | None:
    """`right` or `wrong` where the page has coloured this card so, None where it has its ordinary face."""
    pixels = _pixels(picture)
    inset_x, inset_y = card.width // 8, card.height // 8
    rows, columns = (card.top + inset_y, card.bottom - inset_y), (card.left + inset_x, card.right - inset_x)
    corners = np.stack([pixels[y, x] for y in rows for x in columns])
    for name in ("right", "wrong"):
        off = np.abs(corners - np.array(getattr(colours(theme), name))).max(axis=1)
        if (off <= TOLERANCE).sum() >= 3:
            return name
    return None


def _areas(picture: Image, colour: tuple[int, int, int], narrowest: float) -> list[Box]:
    """Bounding boxes of the connected areas of a colour that are not too narrow for a card or button."""
    from scipy.ndimage import find_objects, label

    areas, _ = label((np.abs(_pixels(picture) - np.array(colour)) <= TOLERANCE).all(axis=2))
    boxes = [Box(x.start, y.start, x.stop, y.stop) for y, x in find_objects(areas)]
    return [box for box in boxes if box.width >= narrowest * min(picture.size)]


def _in_one_row(box: Box, other: Box) -> bool:
    pairs = (box.top, other.top), (box.bottom, other.bottom), (box.width, other.width)
    return all(abs(a - b) <= ALIGNMENT for a, b in pairs)


def _pixels(picture: Image) -> np.ndarray:
    return np.asarray(picture.convert("RGB"), dtype=np.int16)


def _encoded(picture: Image) -> bytes:
    out = io.BytesIO()
    picture.save(out, format="PNG")
    return out.getvalue()
