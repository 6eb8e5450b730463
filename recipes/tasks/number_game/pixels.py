"""What can be read off a screenshot: whether it is a whole PNG, where cards and button are, which card was chosen."""

from __future__ import annotations

import io
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from recipes.errors import RecipeError
from recipes.tasks.number_game.looks import PATCH

if TYPE_CHECKING:
    from PIL.Image import Image

STYLE = Path(__file__).with_name("web") / "style.css"
SIGNATURE = b"\x89PNG\r\n\x1a\n"
END = b"IEND\xaeB`\x82"
TOLERANCE = 6  # of a channel's 255: screens with colour management shift colours a little
# The narrowest card that is looked for, as a share of the screenshot's shorter side.
NARROWEST = 0.12


class BrokenPNG(Exception):
    """The bytes are no PNG, or not a whole one."""


class Box(NamedTuple):
    """A rectangle in pixels; right and bottom are outside."""

    left: int
    top: int
    right: int
    bottom: int

    @property
    def centre(self) -> tuple[int, int]:
        """x and y of the middle, where a finger taps."""
        return (self.left + self.right) // 2, (self.top + self.bottom) // 2


class Colours(NamedTuple):
    """What a theme draws cards and buttons with, as (red, green, blue)."""

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
    out = io.BytesIO()
    try:
        PIL.Image.open(io.BytesIO(data), formats=("JPEG", "WEBP", "BMP")).convert("RGB").save(out, format="PNG")
    except (OSError, SyntaxError, ValueError) as error:
        raise BrokenPNG(f"{len(data)} bytes are no picture: {error}") from error
    return out.getvalue()


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
    if picture.size == (columns * PATCH, lines * PATCH):
        return data
    smaller = picture.convert("RGB").resize((columns * PATCH, lines * PATCH), PIL.Image.Resampling.LANCZOS)
    out = io.BytesIO()
    smaller.save(out, format="PNG")
    return out.getvalue()


@cache
def colours(theme: str) -> Colours:
    """A theme's colours, from the page's own style sheet."""
    text = STYLE.read_text(encoding="utf-8")
    rule = r"^body \{" if theme == "paper" else rf'^\[data-theme="{theme}"\] \{{'
    found = re.search(rule + r"(.*?)\}", text, re.DOTALL | re.MULTILINE)
    if found is None:
        raise RecipeError(f"the page has no theme {theme!r}", where=str(STYLE), fix="choose one of its themes")
    block = found.group(1)
    return Colours(
        face=_hex(re.search(r"--face: (#\w{6})", block)),
        button=_hex(re.search(r"--button: (#\w{6})", block)),
        right=_hex(re.search(r"\.card\.right \{ background: (#\w{6})", text)),
        wrong=_hex(re.search(r"\.card\.wrong \{ background: (#\w{6})", text)),
    )


def find_cards(picture: Image, theme: str) -> list[Box] | None:
    """The three cards from left to right, none of them chosen yet; None where they are not to be seen."""
    boxes = _areas(picture, colours(theme).face, NARROWEST)
    for box in boxes:
        row = [other for other in boxes if _alike(box, other)]
        if len(row) == 3:
            return sorted(row)
    return None


def find_button(picture: Image, theme: str) -> Box | None:
    """The button that leads on, the largest area of its colour; None where it is not to be seen."""
    boxes = [box for box in _areas(picture, colours(theme).button, 0.2) if _width(box) > 2 * _height(box)]
    return max(boxes, key=lambda box: _width(box) * _height(box), default=None)


def verdict(picture: Image, card: Box, theme: str) -> str | None:
    """`right` or `wrong` where the page has coloured this card so, None where it has its ordinary face."""
    seen = _array(picture)
    inset_x, inset_y = _width(card) // 8, _height(card) // 8
    corners = [
        seen[y, x]
        for y in (card.top + inset_y, card.bottom - inset_y)
        for x in (card.left + inset_x, card.right - inset_x)
    ]
    for name in ("right", "wrong"):
        wanted = np.array(getattr(colours(theme), name))
        if sum(int(np.abs(corner - wanted).max()) <= TOLERANCE for corner in corners) >= 3:
            return name
    return None


def _areas(picture: Image, colour: tuple[int, int, int], narrowest: float) -> list[Box]:
    """Bounding boxes of the connected areas of a colour that are not too narrow for a card or button."""
    from scipy.ndimage import find_objects, label

    seen = _array(picture)
    areas, _ = label((np.abs(seen - np.array(colour)) <= TOLERANCE).all(axis=2))
    least = narrowest * min(picture.size)
    boxes = [Box(x.start, y.start, x.stop, y.stop) for y, x in find_objects(areas)]
    return [box for box in boxes if _width(box) >= least]


def _alike(box: Box, other: Box) -> bool:
    """Of the same size and on the same line, within the roundings of a scaled screen."""
    return all(
        abs(a - b) <= 4 for a, b in ((box.top, other.top), (box.bottom, other.bottom), (_width(box), _width(other)))
    )


def _array(picture: Image) -> np.ndarray:
    return np.asarray(picture.convert("RGB"), dtype=np.int16)


def _width(box: Box) -> int:
    return box.right - box.left


def _height(box: Box) -> int:
    return box.bottom - box.top


def _hex(found: re.Match[str] | None) -> tuple[int, int, int]:
    assert found is not None, f"{STYLE} does not give a colour where pixels.py looks for it"
    red, green, blue = bytes.fromhex(found.group(1)[1:])
    return red, green, blue
